package semantics

import (
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// A network volume that is mounted below a local SOURCE keeps what one that is SOURCE keeps:
// an open sees what the last writer left. (docs/SEMANTICS.md, rules 6 and 15.)
func TestFilesBelowALocalSource(t *testing.T) {
	lab.Over(t, testFilesBelowALocalSource, lab.OverClientsThatKeep, lab.OnNetworkVolume)
}

func testFilesBelowALocalSource(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1", "--name-wait", "1m") // the other mount's lock may be given back late
	a, b := v.MountBelow("a"), v.MountBelow("b")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	save := func(path, data string) {
		t.Helper()
		fd := p.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
		p.Must(lab.Call{Op: "write", FD: fd, Data: data})
		p.Must(lab.Call{Op: "close", FD: fd})
	}
	save(a.Path("below/log"), "0")
	want := "0"
	for i := range 5 {
		reader := q.Open(b.Path("below/log"), unix.O_RDONLY)
		q.Must(lab.Call{Op: "pread", FD: reader, N: 100})
		holder := p.Open(a.Path("below/log"), unix.O_RDWR)
		pending := q.Start(lab.Call{Op: "open", Path: b.Path("below/log"), Flags: unix.O_RDWR})
		lab.Eventually(t, "it waits", func() bool { return len(v.LSBelow(a)) == 2 })
		data := fmt.Sprint(i + 1)
		p.Must(lab.Call{Op: "pwrite", FD: holder, Off: int64(len(want)), Data: data})
		p.Must(lab.Call{Op: "close", FD: holder})
		want += data
		waiter := lab.Await(t, "open", pending)
		if waiter.Errno != 0 {
			t.Fatal(waiter.Err())
		}
		if got := q.Do(lab.Call{Op: "pread", FD: waiter.N, N: 100}); got.Data != want {
			t.Errorf("round %d: who waited reads %q, want %q", i, got.Data, want)
		}
		q.Must(lab.Call{Op: "pwrite", FD: waiter.N, Data: data}) // of the same size
		q.Must(lab.Call{Op: "close", FD: waiter.N})
		q.Must(lab.Call{Op: "close", FD: reader})
		want = data + want[1:]
		p.Sees(a.Path("below/log"), want)
	}
	for i := range 5 {
		data := fmt.Sprint("saved ", i)
		save(a.Path("below/tmp"), data)
		p.Must(lab.Call{Op: "rename", Path: a.Path("below/tmp"), Path2: a.Path("below/log")})
		q.Sees(b.Path("below/log"), data)
	}
	if left, _ := filepath.Glob(filepath.Join(v.Source, ".nfs*")); len(left) > 0 {
		t.Errorf("the client has renamed what was replaced: %q", left)
	}
}

// A server of NFS may have other file systems in the one that it exports. The client mounts
// one when it is used, be it used by a view alone.
func TestFilesBelowAnExport(t *testing.T) {
	lab.Over(t, testFilesBelowAnExport, lab.OnNetworkVolume)
}

func testFilesBelowAnExport(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	dir := lab.Fault(t, "export below")
	for i, c := range lab.NetworkClients() {
		v.Clients[i] = filepath.Join(c, dir)
	}
	v.Source = v.Clients[0]
	a, b := v.Mount("a"), v.Mount("b")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	fd := p.Open(a.Path("below/f"), unix.O_WRONLY|unix.O_CREAT)
	p.Must(lab.Call{Op: "write", FD: fd, Data: "one"})
	p.Must(lab.Call{Op: "close", FD: fd})
	fd = q.Open(b.Path("below/f"), unix.O_WRONLY|unix.O_APPEND)
	q.Must(lab.Call{Op: "write", FD: fd, Data: " two"})
	q.Must(lab.Call{Op: "close", FD: fd})
	p.Sees(a.Path("below/f"), "one two")
}
