package semantics

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// A file that was replaced elsewhere is no more, however the client says so: whoever
// calls by the name gets the one that has it.
func TestReplacedElsewhere(t *testing.T) {
	t.Parallel()
	for says, config := range map[string]lab.ClientConfig{"ESTALE": {}, "ENOENT": {Absent: true}} {
		t.Run(says, func(t *testing.T) {
			v := lab.NewVolumeOverClients(t, config, "--name-wait", "1m") // the other mount's lock may be given back late
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

// A client that does not know for a moment what a file is, is asked again: no program hears of it.
func TestClientThatIsUnsure(t *testing.T) {
	t.Parallel()
	v := lab.NewVolumeOverClients(t, lab.ClientConfig{Unsure: true, Doubts: true, PastCache: true},
		"--flock", "cluster", "--name-wait", "1m") // the other mount's lock may be given back late
	a, b := v.Mount("a"), v.Mount("b")
	here, there := lab.NewAgent(t), lab.NewAgent(t)
	for i := range 5 {
		name, other := fmt.Sprint("f", i), fmt.Sprint("g", i)
		fd := here.Open(a.Path(name), unix.O_RDWR|unix.O_CREAT)
		here.Must(lab.Call{Op: "write", FD: fd, Data: "text"})
		here.Must(lab.Call{Op: "getxattr", Path: a.Path(name), Path2: "user.lockfs.token"})
		here.Must(lab.Call{Op: "close", FD: fd})
		there.Sees(b.Path(name), "text")
		fd = there.Open(b.Path(name), unix.O_WRONLY|unix.O_APPEND)
		there.Must(lab.Call{Op: "flock", FD: fd, Flags: lockEx})
		there.Must(lab.Call{Op: "write", FD: fd, Data: " and more"})
		there.Must(lab.Call{Op: "close", FD: fd})
		here.Sees(a.Path(name), "text and more")
		for _, c := range []lab.Call{
			{Op: "ask", Path: a.Path(name)},
			{Op: "birth", Path: a.Path(name)},
			{Op: "chmod", Path: a.Path(name), N: 0o6755},
			{Op: "truncate", Path: a.Path(name), Off: 2},
			{Op: "link", Path: a.Path(name), Path2: a.Path(other)},
			{Op: "rename", Path: a.Path(other), Path2: a.Path("h")},
			{Op: "unlink", Path: a.Path("h")},
		} {
			here.Must(c)
		}
		fd = there.Open(b.Path(name), unix.O_WRONLY|unix.O_TRUNC)
		there.Must(lab.Call{Op: "write", FD: fd, Data: "anew"})
		there.Must(lab.Call{Op: "close", FD: fd})
		here.Sees(a.Path(name), "anew")
	}
}

// A name that the client believes, of a file that another mount has moved and
// writes to, leads no writer to it.
func TestNamesThatAClientBelieves(t *testing.T) {
	t.Parallel()
	v := lab.NewVolumeOverClients(t, lab.ClientConfig{})
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "held")
	holder, other := lab.NewAgent(t), lab.NewAgent(t)
	r := other.Open(b.Path("f"), unix.O_RDONLY)
	holder.Must(lab.Call{Op: "rename", Path: a.Path("f"), Path2: a.Path("g")})
	fd := holder.Open(a.Path("g"), unix.O_RDWR)
	v.AwaitLocked("g")
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

// A view does not ask again where a directory is that it has just found. Another mount renames
// the directory, or puts another in its place: no writer gets to a file by the old path.
func TestDirectoryThatWasJustFound(t *testing.T) {
	lab.Over(t, testDirectoryThatWasJustFound, lab.OverClients, lab.InLeases.ForLong(), lab.OnNetworkVolume)
}

func testDirectoryThatWasJustFound(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	here, there := lab.NewAgent(t), lab.NewAgent(t)
	find := func() {
		t.Helper()
		fd := here.Open(b.Path("d/e/f"), unix.O_WRONLY|unix.O_APPEND)
		here.Must(lab.Call{Op: "close", FD: fd})
		lab.Eventually(t, "nothing is locked", func() bool { return len(v.LS()) == 0 })
	}
	for _, dir := range []string{"d", "d/e"} {
		there.Must(lab.Call{Op: "mkdir", Path: a.Path(dir)})
	}
	for _, name := range []string{"d/e/f", "d/e/g"} {
		fd := there.Open(a.Path(name), unix.O_WRONLY|unix.O_CREAT)
		there.Must(lab.Call{Op: "write", FD: fd, Data: "old\n"})
		there.Must(lab.Call{Op: "close", FD: fd})
	}

	here.Must(lab.Call{Op: "mode", Path: b.Path("d/e/g")}) // its kernel knows it
	find()
	there.Must(lab.Call{Op: "rename", Path: a.Path("d"), Path2: a.Path("moved")})
	fd := there.Open(a.Path("moved/e/f"), unix.O_WRONLY)
	other := there.Open(a.Path("moved/e/g"), unix.O_WRONLY)
	for _, c := range []lab.Call{
		{Op: "open", Path: b.Path("d/e/f"), Flags: unix.O_WRONLY},
		{Op: "open", Path: b.Path("d/e/g"), Flags: unix.O_WRONLY | unix.O_TRUNC},
		{Op: "open", Path: b.Path("d/e/new"), Flags: unix.O_WRONLY | unix.O_CREAT},
		{Op: "truncate", Path: b.Path("d/e/g")},
		{Op: "rename", Path: b.Path("d/e/f"), Path2: b.Path("d/e/g")},
		{Op: "unlink", Path: b.Path("d/e/f")},
	} {
		here.Fails(c, unix.ENOENT)
	}
	there.Must(lab.Call{Op: "close", FD: fd})
	there.Must(lab.Call{Op: "close", FD: other})
	lab.Eventually(t, "nothing is locked", func() bool { return len(v.LS()) == 0 })
	there.Must(lab.Call{Op: "rename", Path: a.Path("moved"), Path2: a.Path("d")})

	find()
	there.Must(lab.Call{Op: "rename", Path: a.Path("d/e"), Path2: a.Path("away")})
	there.Must(lab.Call{Op: "mkdir", Path: a.Path("d/e")})
	made := there.Open(a.Path("d/e/f"), unix.O_WRONLY|unix.O_CREAT)
	there.Must(lab.Call{Op: "write", FD: made, Data: "new\n"})
	there.Must(lab.Call{Op: "close", FD: made})
	fd = here.Open(b.Path("d/e/f"), unix.O_WRONLY|unix.O_APPEND)
	here.Must(lab.Call{Op: "write", FD: fd, Data: "me\n"})
	here.Must(lab.Call{Op: "close", FD: fd})
	if away, now := v.Read("away/f"), v.Read("d/e/f"); away != "old\n" || now != "new\nme\n" {
		t.Errorf("the file that was put away holds %q, the new one %q", away, now)
	}
}

// Programs on two mounts count in one file while others rename the directory above it to and
// fro: none counts by a path that the file has lost, beside one that counts by its present path.
func TestCountersWhileDirectoriesMove(t *testing.T) {
	lab.Over(t, testCountersWhileDirectoriesMove, lab.OverClients, lab.OverClientsThatDoubt.ForLong(), lab.InLeases.ForLong())
}

func testCountersWhileDirectoriesMove(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, on.Flags...)
	mounts := []*lab.Mount{v.Mount("a"), v.Mount("b")}
	if err := os.MkdirAll(v.InSource("top/0/d"), 0o777); err != nil {
		t.Fatal(err)
	}
	v.Write("top/0/d/count", "0")
	var counted, moved atomic.Int64
	var counters, movers sync.WaitGroup
	done := make(chan struct{})
	alone, over := context.WithCancel(t.Context()) // one mount is, at first, if directories are delegated
	if len(on.Flags) > 0 {
		delegate(v, lab.NewAgent(t), mounts[0], "top")
	} else {
		over()
	}
	for i := range 4 {
		m, counter, mover := mounts[i%2], lab.NewAgent(t), lab.NewAgent(t)
		begin := func() {
			if m == mounts[1] {
				<-alone.Done()
			}
		}
		counters.Go(func() {
			begin()
			for n := range longtest.Seeds(t, 100, 100) {
				if n == 30 {
					over()
				}
				r := counter.Do(lab.Call{Op: "open", Path: m.Path(fmt.Sprintf("top/%d/d/count", rand.IntN(2))), Flags: unix.O_RDWR})
				if r.Errno != 0 {
					continue
				}
				n, err := strconv.Atoi(counter.Do(lab.Call{Op: "pread", FD: r.N, N: 20}).Data)
				if err != nil {
					t.Error(err)
				}
				if w := counter.Do(lab.Call{Op: "pwrite", FD: r.N, Data: strconv.Itoa(n + 1)}); w.Errno != 0 {
					t.Error(w.Err())
				}
				if c := counter.Do(lab.Call{Op: "close", FD: r.N}); c.Errno != 0 {
					t.Error(c.Err())
				}
				counted.Add(1)
			}
		})
		movers.Go(func() {
			begin()
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				if mover.Do(lab.Call{Op: "rename", Path: m.Path(fmt.Sprint("top/", n%2)), Path2: m.Path(fmt.Sprint("top/", 1-n%2))}).Errno == 0 {
					moved.Add(1)
				}
				mover.Must(lab.Call{Op: "pause", N: rand.IntN(20)})
			}
		})
	}
	counters.Wait()
	over()
	close(done)
	movers.Wait()
	t.Logf("counted %d, moved %d times", counted.Load(), moved.Load())
	if counted.Load() == 0 || moved.Load() == 0 {
		t.Error("nothing was tried")
	}
	for _, dir := range []string{"0", "1"} {
		if b, err := os.ReadFile(v.InSource("top/" + dir + "/d/count")); err == nil && string(b) != strconv.FormatInt(counted.Load(), 10) {
			t.Errorf("the file holds %s, counted %d", b, counted.Load())
		}
	}
}
