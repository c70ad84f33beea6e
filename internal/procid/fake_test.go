package procid

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// fakeProc is a /proc of the test's making.
type fakeProc struct {
	Proc
	t *testing.T
}

func newFakeProc(t *testing.T) fakeProc { return fakeProc{Proc{Root: t.TempDir()}, t} }

func (p fakeProc) write(pid int, file, text string) {
	p.t.Helper()
	name := filepath.Join(p.Root, strconv.Itoa(pid), file)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func (p fakeProc) stat(pid int, comm string, ppid, threads, start int) {
	p.t.Helper()
	p.write(pid, fmt.Sprintf("task/%d/stat", pid), fmt.Sprintf("%d (%s) S %d 30074 8621 0 -1 4194304 99 0 0 0 0 0 0 0 20 0 %d 0 %d 3133440 382\n",
		pid, comm, ppid, threads, start))
}

// status imitates Linux 6.18, with the lines before and after those that count.
func status(tgid, tid int, state, thread, shared string, groups int) string {
	return fmt.Sprintf("Name:\tTgid:\\nx\nUmask:\t0022\nState:\t%s\nTgid:\t%d\nNgid:\t0\nPid:\t%d\nPPid:\t1\n"+
		"Groups:\t%s\nThreads:\t3\nSigQ:\t0/96365\nSigPnd:\t%s\nShdPnd:\t%s\nSigBlk:\t0000000000000100\n",
		state, tgid, tid, strings.Repeat("65534 ", groups), thread, shared)
}

const none = "0000000000000000"

func TestLookup(t *testing.T) {
	p := newFakeProc(t)
	p.stat(100, "java", 1, 3, 5000)
	p.stat(103, "GC thread", 1, 3, 5007)
	p.write(103, "status", status(100, 103, "S (sleeping)", none, none, 0))
	p.write(103, "cgroup", "0::/kubepods/pod"+uid+"/"+cid+"\n")
	// The main thread has exited; its cgroup must not matter.
	p.write(100, "cgroup", "0::/\n")

	want := Caller{Process: Process{PID: 100, Start: 5000}, Comm: "java", Pod: uid, Container: cid}
	if got, err := p.Lookup(103); err != nil || got != want {
		t.Errorf("Lookup(103) = %+v, %v, want %+v", got, err, want)
	}
	p.stat(200, "sh", 1, 1, 6000)
	p.write(200, "cgroup", "0::/user.slice\n")
	want = Caller{Process: Process{PID: 200, Start: 6000}, Comm: "sh"}
	if got, err := p.Lookup(200); err != nil || got != want {
		t.Errorf("Lookup(200) = %+v, %v, want %+v", got, err, want)
	}
}

func TestLookupOfWhatIsGoneOrMalformed(t *testing.T) {
	p := newFakeProc(t)
	p.stat(1, "no cgroup", 0, 1, 1)
	p.stat(2, "no status", 0, 2, 1)
	p.stat(3, "no process", 0, 2, 1)
	p.write(3, "status", status(30, 3, "S", none, none, 0))
	for _, tid := range []int{1, 2, 3, 4} {
		if got, err := p.Lookup(tid); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Lookup(%d) = %+v, %v, want fs.ErrNotExist", tid, got, err)
		}
	}
	p.write(5, "task/5/stat", "5 no parentheses")
	p.stat(6, "status", 0, 2, 1)
	p.write(6, "status", "Name:\tstatus\n")
	p.stat(7, "status", 0, 2, 1)
	p.write(7, "status", "Name:\tstatus\nTgid:\tx\n")
	for _, tid := range []int{5, 6, 7} {
		if got, err := p.Lookup(tid); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Lookup(%d) = %+v, %v, want an error other than fs.ErrNotExist", tid, got, err)
		}
	}
}

func TestParseStat(t *testing.T) {
	const rest = " S 12 30074 8621 0 -1 4194304 99 0 0 0 0 0 0 0 20 0 7 0 271388 3133440 382\n"
	for _, comm := range []string{"cat", "", "a b", "a) R 1 (b", ")", "(", "x\ny", "\xff)"} {
		got, err := parseStat([]byte("30081 (" + comm + ")" + rest))
		if want := (stat{comm: comm, ppid: 12, flags: 4194304, threads: 7, start: 271388}); err != nil || got != want {
			t.Errorf("parseStat of comm %q = %+v, %v, want %+v", comm, got, err, want)
		}
	}
	for _, text := range []string{"", "1", "1 (", "1 )(", "1 (x)", "1 (x) S 1 2 3", "1 (x) S -" + rest, "1 (x) S 1" + strings.Repeat(" 0", 17) + " y 1"} {
		if got, err := parseStat([]byte(text)); err == nil {
			t.Errorf("parseStat(%q) = %+v, want an error", text, got)
		}
	}
}

func TestAncestors(t *testing.T) {
	p := newFakeProc(t)
	p.stat(1, "init", 0, 1, 1)
	p.stat(10, "shell", 1, 1, 100)
	p.stat(11, "make", 10, 1, 200)
	p.stat(12, "cc", 11, 1, 200)  // in the same clock tick
	p.stat(20, "x", 19, 1, 300)   // its parent is gone
	p.stat(30, "y", 31, 1, 300)   // its parent's pid
	p.stat(31, "z", 1, 1, 301)    // was taken over
	p.stat(40, "ns", 0, 1, 300)   // its parent is out of sight
	p.stat(50, "loop", 51, 1, 10) // cannot be
	p.stat(51, "loop", 50, 1, 10)

	tests := map[int][]Process{
		12: {{PID: 11, Start: 200}, {PID: 10, Start: 100}, {PID: 1, Start: 1}},
		1:  nil, 20: nil, 30: nil, 40: nil, 99: nil,
	}
	for pid, want := range tests {
		if got := p.Ancestors(pid); !slices.Equal(got, want) {
			t.Errorf("Ancestors(%d) = %v, want %v", pid, got, want)
		}
	}
	if got := p.Ancestors(50); len(got) != maxAncestors {
		t.Errorf("%d ancestors in a loop, want %d", len(got), maxAncestors)
	}
}

func TestKillPending(t *testing.T) {
	const sigkill, others = "0000000000000100", "fffffffffffffeff"
	tests := []struct {
		name   string
		status string
		want   bool
	}{
		{"nothing pending", status(1, 1, "D (disk sleep)", none, none, 0), false},
		{"of the thread", status(1, 1, "D (disk sleep)", sigkill, none, 0), true},
		{"of the process", status(1, 1, "D (disk sleep)", none, sigkill, 0), true},
		{"all others", status(1, 1, "D (disk sleep)", others, others, 0), false},
		{"among others", status(1, 1, "D (disk sleep)", "ffffffffffffffff", none, 0), true},
		{"zombie", status(1, 1, "Z (zombie)", none, none, 0), true},
		{"dead", status(1, 1, "X (dead)", none, none, 0), true},
		{"longer than the buffer", status(1, 1, "D (disk sleep)", none, sigkill, 10*bufSize), true},
		{"longer than the buffer, nothing pending", status(1, 1, "D (disk sleep)", none, none, bufSize), false},
	}
	p := newFakeProc(t)
	for i, test := range tests {
		p.write(i, "status", test.status)
		if got := p.KillPending(i); got != test.want {
			t.Errorf("%s: KillPending = %v, want %v", test.name, got, test.want)
		}
	}
	// It cannot be read, but the thread is there.
	if err := os.MkdirAll(filepath.Join(p.Root, "99", "status"), 0o755); err != nil {
		t.Fatal(err)
	}
	if p.KillPending(99) {
		t.Error("KillPending without a readable status")
	}
}

func TestInHostPIDNamespace(t *testing.T) {
	const host, node, mounts, others = "pid:[4026531836]", "pid:[4026532201]", "mnt:[4026532100]", "mnt:[4026532200]"
	const shim = 77
	for _, test := range []struct {
		name         string
		pid          string // namespace
		parents      []int
		mnt, initMnt string // namespaces
		want         bool
	}{
		{"on the host", host, []int{shim, 1}, mounts, mounts, true},
		{"in a pod with hostPID", host, []int{shim, 1}, mounts, others, true},
		{"in one on a node in a container", node, []int{shim, 1}, mounts, others, true},
		{"in a container", node, nil, mounts, mounts, false},
		{"below a container's init", node, []int{shim, 1}, mounts, mounts, false},
		{"in a pod that shares its processes", node, nil, mounts, others, false},
		{"without knowing the mounts of process 1", node, []int{1}, mounts, "", false},
		{"without knowing its own", node, []int{1}, "", others, false},
		{"without /proc", "", nil, "", "", false},
	} {
		p := newFakeProc(t)
		link := func(dir, file, target string) {
			if target == "" {
				return
			}
			dir = filepath.Join(p.Root, dir, "ns")
			if err := errors.Join(os.MkdirAll(dir, 0o755), os.Symlink(target, filepath.Join(dir, file))); err != nil {
				t.Fatal(err)
			}
		}
		link("self", "pid", test.pid)
		link("self", "mnt", test.mnt)
		link("1", "mnt", test.initMnt)
		pid := os.Getpid()
		for _, parent := range append(test.parents, 0) {
			p.stat(pid, "x", parent, 1, 1)
			pid = parent
		}
		if got := p.InHostPIDNamespace(); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
