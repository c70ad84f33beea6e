package semantics

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// A file that was replaced elsewhere is no more, however the client says so: whoever
// calls by the name gets the one that has it.
func TestReplacedElsewhere(t *testing.T) {
	t.Parallel()
	for says, config := range map[string]lab.ClientConfig{"ESTALE": {}, "ENOENT": {Absent: true}} {
		t.Run(says, func(t *testing.T) {
			v := lab.NewVolumeOverClients(t, config)
			v.InMemory()
			a, b := v.Mount("a"), v.Mount("b")
			here, there := lab.NewAgent(t), lab.NewAgent(t)
			for name, c := range map[string]lab.Call{
				"read":   {Op: "open", Flags: unix.O_RDONLY},
				"write":  {Op: "open", Flags: unix.O_RDWR},
				"create": {Op: "open", Flags: unix.O_RDWR | unix.O_CREAT, Mode: 0o644},
				"link":   {Op: "link", Path2: b.Path("linked")},
			} {
				v.Write(name, "old")
				v.Write("new", "new")
				c.Path = b.Path(name)
				here.Must(lab.Call{Op: "mode", Path: c.Path})
				there.Must(lab.Call{Op: "rename", Path: a.Path("new"), Path2: a.Path(name)})
				if r := here.Do(c); r.Errno != 0 {
					t.Errorf("%s: %v", name, r.Errno)
				}
			}
		})
	}
}

// A name that the client believes, of a file that another mount has moved and
// writes to, leads no writer to it.
func TestNamesThatAClientBelieves(t *testing.T) {
	t.Parallel()
	v := lab.NewVolumeOverClients(t, lab.ClientConfig{})
	v.InMemory()
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "held")
	holder, other := lab.NewAgent(t), lab.NewAgent(t)
	r := other.Open(b.Path("f"), unix.O_RDONLY)
	holder.Must(lab.Call{Op: "rename", Path: a.Path("f"), Path2: a.Path("g")})
	fd := holder.Open(a.Path("g"), unix.O_RDWR)
	for _, c := range []struct {
		lab.Call
		want unix.Errno
	}{
		{lab.Call{Op: "truncate", Path: b.Path("f")}, unix.ENOENT},
		{lab.Call{Op: "open", Path: lab.ProcFD(r), Flags: unix.O_WRONLY | unix.O_TRUNC}, unix.EBUSY},
		{lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_TRUNC}, unix.ENOENT},
		{lab.Call{Op: "unlink", Path: b.Path("f")}, unix.ENOENT},
		{lab.Call{Op: "rename", Path: b.Path("f"), Path2: b.Path("h")}, unix.ENOENT},
		{lab.Call{Op: "link", Path: b.Path("f"), Path2: b.Path("h")}, unix.ENOENT},
		{lab.Call{Op: "open", Path: b.Path("g"), Flags: unix.O_WRONLY | unix.O_TRUNC | unix.O_NONBLOCK}, unix.EAGAIN},
	} {
		other.Fails(c.Call, c.want)
	}
	if got := holder.Do(lab.Call{Op: "pread", FD: fd, N: 10}); got.Data != "held" {
		t.Errorf("the file holds %q, %v", got.Data, got.Err())
	}
	// A reader may be led to it; one that the volume has removed is looked for again.
	holder.Must(lab.Call{Op: "unlink", Path: a.Path("g")})
	v.Write("f", "new")
	other.Sees(b.Path("f"), "new")
}
