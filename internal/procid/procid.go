package procid

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// Proc reads a proc file system.
type Proc struct {
	// Root is where it is mounted. Empty: /proc.
	Root string
}

// Process is one process. A pid alone does not identify it, because pids are reused.
type Process struct {
	PID   int
	Start uint64 // clock ticks after boot, from /proc/PID/stat
}

// Caller is the sender of a request.
type Caller struct {
	// Process has the PID of the process, not of the thread.
	Process Process
	// Comm is the name that the process gives itself, any bytes.
	Comm string
	// Pod is the UID of its Kubernetes pod as in the API, of pods inside of pods
	// outer/inner; empty outside pods. A static pod's is that of its manifest
	// (32 hex digits), not of its mirror in the API.
	Pod string
	// Container is the runtime's id of its container in the pod, as in the API
	// behind the runtime's name; empty when it is in none.
	Container string
}

// Lookup returns the process of thread tid. Errors: fs.ErrNotExist if there is none, as for tid 0.
func (p Proc) Lookup(tid int) (Caller, error) {
	var array [bufSize]byte
	buf := array[:]

	// A process with one thread, as most have, has that thread's id. Its stat shows that,
	// and saves reading status, the slowest of the three files.
	b, err := p.readStat(buf, tid)
	if err != nil {
		return Caller{}, err
	}
	st, err := parseStat(b)
	if err != nil {
		return Caller{}, p.malformed(tid, "stat", err)
	}
	pid := tid
	if st.threads != 1 {
		if b, err = p.read(buf, tid, "status"); err != nil {
			return Caller{}, err
		}
		if pid, err = parseTgid(b); err != nil {
			return Caller{}, p.malformed(tid, "status", err)
		}
		if pid != tid {
			if b, err = p.readStat(buf, pid); err != nil {
				return Caller{}, err
			}
			if st, err = parseStat(b); err != nil {
				return Caller{}, p.malformed(pid, "stat", err)
			}
		}
	}
	caller := Caller{
		Process: Process{PID: pid, Start: st.start},
		Comm:    st.comm,
	}
	// Read the thread's: an exited main thread is shown in the root cgroup (v1).
	if b, err = p.read(buf, tid, "cgroup"); err != nil {
		return Caller{}, err
	}
	caller.Pod, caller.Container = podOf(b)
	return caller, nil
}

// maxAncestors bounds Ancestors. Only an attack has deeper trees.
const maxAncestors = 256

// Ancestors returns the parent of pid, its parent and so on to process 1. If one exits meanwhile
// the list is shorter or empty, but correct.
func (p Proc) Ancestors(pid int) []Process {
	var array [bufSize]byte
	var ancestors []Process
	var child stat
	for depth := range maxAncestors + 1 {
		b, err := p.readStat(array[:], pid)
		if err != nil {
			return ancestors
		}
		st, err := parseStat(b)
		if err != nil {
			return ancestors
		}
		if depth > 0 {
			// A parent starts before its child. This process reuses the pid of a parent
			// that exited after we read its child.
			if st.start > child.start {
				return ancestors
			}
			ancestors = append(ancestors, Process{PID: pid, Start: st.start})
		}
		if st.ppid == 0 {
			return ancestors
		}
		child, pid = st, st.ppid
	}
	return ancestors
}

// hostPIDNamespace is the first PID namespace's inode number (PROC_PID_INIT_INO of the kernel).
const hostPIDNamespace = "pid:[4026531836]"

// InHostPIDNamespace reports whether this process is in the PID namespace of
// all programs of its machine: the first one, or that of a node which is a
// container itself (kind, k3d). There a container's process descends from the
// node's process 1, which has other mounts; in a PID namespace of its own, it
// or a process with its mounts is process 1, or it has no parent.
//
// Elsewhere most callers have no pid: the kernel sends 0.
func (p Proc) InHostPIDNamespace() bool {
	ns, err := os.Readlink(filepath.Join(p.root(), "self/ns/pid"))
	if err != nil || ns == hostPIDNamespace {
		return err == nil
	}
	ancestors := p.Ancestors(os.Getpid())
	if len(ancestors) == 0 || ancestors[len(ancestors)-1].PID != 1 {
		return false
	}
	own, err := os.Readlink(filepath.Join(p.root(), "self/ns/mnt"))
	if err != nil {
		return false
	}
	first, err := os.Readlink(p.path(1, "ns/mnt"))
	return err == nil && first != own
}

func (p Proc) root() string { return cmp.Or(p.Root, "/proc") }

func (p Proc) malformed(pid int, file string, err error) error {
	return &fs.PathError{Op: "parse", Path: p.path(pid, file), Err: err}
}

// parseTgid returns the process id in a /proc/<tid>/status. The kernel escapes
// newlines in the name above it.
func parseTgid(status []byte) (int, error) {
	v, ok := statusLine(status, "\nTgid:\t")
	if !ok {
		return 0, errors.New("no field Tgid")
	}
	tgid, err := strconv.ParseUint(string(v), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("field Tgid is %q", string(v)) // a copy, or every caller's buffer is on the heap
	}
	return int(tgid), nil
}

// statusLine returns the rest of the line after key, which begins with a newline.
func statusLine(status []byte, key string) ([]byte, bool) {
	_, rest, ok := bytes.Cut(status, []byte(key))
	if !ok {
		return nil, false
	}
	line, _, _ := bytes.Cut(rest, []byte{'\n'})
	return line, true
}
