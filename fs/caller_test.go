package fs

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/procid"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
)

// fakeProc is a /proc with the given threads.
type fakeThread struct {
	tid, tgid, start int
	cgroup           string
}

func fakeProc(t *testing.T, threads ...fakeThread) procid.Proc {
	t.Helper()
	root := t.TempDir()
	for _, th := range threads {
		tid := fmt.Sprint(th.tid)
		dir, task := filepath.Join(root, tid), filepath.Join("task", tid)
		if err := os.MkdirAll(filepath.Join(dir, task), 0o755); err != nil {
			t.Fatal(err)
		}
		// Field 20 is the number of threads, field 22 the start time.
		stat := fmt.Sprintf("%d (prog (x) y) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 2 0 %d 0 0\n", th.tid, th.start)
		for name, content := range map[string]string{
			filepath.Join(task, "stat"): stat,

			"status": fmt.Sprintf("Name:\tprog\nTgid:\t%d\nPid:\t%d\n", th.tgid, th.tid),
			"cgroup": th.cgroup,
			"comm":   "prog\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return procid.Proc{Root: root}
}

func callerOf(t *testing.T, cs *callers, in *fuse.InHeader, scope policy.Scope, single func(procid.Process) lockmgr.Owner) lockmgr.Request {
	t.Helper()
	c, err := cs.caller(in, nil, scope, single)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A caller whose process cannot be looked at for want of descriptors is not taken
// for another owner: it would wait for its own lock, or write beside its own pod's.
func TestCallerWithoutDescriptors(t *testing.T) {
	f := &locker{log: slog.New(slog.DiscardHandler)}
	f.gates = f.newGates(newBudget(backlogSize), f.log)
	in := &fuse.InHeader{Caller: fuse.Caller{Pid: uint32(os.Getpid())}}
	callerOf(t, &f.callers, in, policy.ScopeAuto, openOwner)
	f.callers.cache.Close() // and with it what it remembers
	withoutDescriptors(t, func() {
		c, err := f.caller(in, nil, policy.ScopeAuto, openOwner)
		if errno(err) != fuse.Status(unix.EMFILE) || c.Owner != "" {
			t.Errorf("it is %q, %v", c.Owner, err)
		}
		if hold, s := f.try(nil, in, rule{scope: policy.ScopeAuto}, false); hold != nil || s != fuse.Status(unix.EMFILE) {
			t.Errorf("a request without a key: %v", s)
		}
	})
	callerOf(t, &f.callers, in, policy.ScopeAuto, openOwner)
}

// withoutDescriptors runs do while the process can open nothing.
func withoutDescriptors(t *testing.T, do func()) {
	t.Helper()
	withDescriptorsBelow(t, 3, do)
}

// withDescriptorsBelow runs do while the process can open only descriptors below limit.
func withDescriptorsBelow(t *testing.T, limit int, do func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(limit), Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	do()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
}

// Which callers are one owner, in each scope.
func TestScopes(t *testing.T) {
	const (
		podA = "0::/kubepods/burstable/pod11111111-2222-3333-4444-555555555555/c1\n"
		podB = "0::/kubepods/burstable/pod99999999-2222-3333-4444-555555555555/c1\n"
		host = "0::/user.slice\n"
	)
	procs := fakeProc(t,
		fakeThread{10, 10, 100, podA}, fakeThread{11, 10, 100, podA}, // two threads of a process
		fakeThread{20, 20, 200, podA}, // another process of the pod
		fakeThread{30, 30, 300, podB},
		fakeThread{40, 40, 400, host}, fakeThread{50, 50, 500, host},
	)
	const gone = 60 // a process that is no more, twice
	for scope, same := range map[policy.Scope]string{
		//              thread process pod    none   gone
		policy.ScopeHandle:  "no      no      no     no     no",
		policy.ScopeProcess: "yes     no      no     no     no",
		policy.ScopePod:     "yes     yes     no     no     no",
		policy.ScopeAuto:    "yes     yes     no     no     no",
		policy.ScopeNode:    "yes     yes     yes    yes    yes",
	} {
		cs := &callers{cache: procid.Cache{Proc: procs}}
		owner := func(tid uint32) lockmgr.Owner {
			return callerOf(t, cs, &fuse.InHeader{Caller: fuse.Caller{Pid: tid}}, scope, openOwner).Owner
		}
		var want [5]string
		fmt.Sscan(same, &want[0], &want[1], &want[2], &want[3], &want[4])
		for i, pair := range [][2]uint32{{10, 11}, {10, 20}, {10, 30}, {40, 50}, {gone, gone}} {
			if got := owner(pair[0]) == owner(pair[1]); got != (want[i] == "yes") {
				t.Errorf("scope %s: opens by %v have one owner: %v, want %s", scope, pair, got, want[i])
			}
		}
	}

	// In scope handle a call without a handle is the process's.
	cs := &callers{cache: procid.Cache{Proc: procs}}
	call := func(tid uint32) lockmgr.Owner {
		return callerOf(t, cs, &fuse.InHeader{Caller: fuse.Caller{Pid: tid}}, policy.ScopeHandle, cs.callOwner).Owner
	}
	nobody, again := call(gone), call(gone)
	if call(10) != call(11) || call(10) == call(20) || nobody == again {
		t.Error("calls without a handle are not the process's")
	}

	c := callerOf(t, cs, &fuse.InHeader{Caller: fuse.Caller{Pid: 11, Owner: fuse.Owner{Uid: 7}}}, policy.ScopeHandle, openOwner)
	if c.Holder.PID != 10 || c.Holder.UID != 7 || c.Holder.Comm != "prog (x) y" || c.Holder.Pod == "" {
		t.Errorf("people are told %+v", c.Holder)
	}
}

// What Kubernetes calls a caller's pod stands in its entry, and decides nothing.
func TestHolderNamesItsPod(t *testing.T) {
	const uid = "11111111-2222-3333-4444-555555555555"
	const container = "9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c"
	cs := &callers{cache: procid.Cache{Proc: fakeProc(t,
		fakeThread{10, 10, 100, "0::/kubepods/burstable/pod" + uid + "/" + container + "\n"},
		fakeThread{20, 20, 200, "0::/user.slice\n"})}}
	for _, known := range []bool{true, false} {
		cs.podName = func(c procid.Caller) (string, string) {
			if c.Pod != uid || c.Container != container || c.Process.PID != 10 {
				t.Errorf("asked for %+v", c)
			}
			if !known {
				return "", ""
			}
			return "team-a/web-0", "main"
		}
		c := callerOf(t, cs, &fuse.InHeader{Caller: fuse.Caller{Pid: 10}}, policy.ScopeAuto, openOwner)
		if c.Owner != "pod "+uid || c.Holder.Pod != uid || (c.Holder.PodName == "team-a/web-0") != known || (c.Holder.Container == "main") != known {
			t.Errorf("with names known: %v, the caller is %+v", known, c)
		}
	}
	if c := callerOf(t, cs, &fuse.InHeader{Caller: fuse.Caller{Pid: 20}}, policy.ScopeAuto, openOwner); c.Holder.PodName != "" {
		t.Errorf("outside of pods: %+v", c.Holder)
	}
}
