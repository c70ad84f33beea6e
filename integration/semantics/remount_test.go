package semantics

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// overClient is a volume with a view a over a client that the test ends, b over another.
type overClient struct {
	*lab.Volume
	a, b *lab.Watched
}

func newOverClient(t *testing.T) *overClient {
	t.Helper()
	v := lab.NewVolumeOverClients(t, lab.ClientConfig{}, "--wait", "-1")
	return &overClient{v, v.MountWatched("a"), v.MountWatched("b")}
}

// again mounts a's client where it was.
func (v *overClient) again() { lab.StartClient(v.T, v.Source, v.Own["a"].Dir, lab.ClientConfig{}) }

// isOut waits until a does not reach its volume, and says why.
func (v *overClient) isOut(why string) {
	v.T.Helper()
	lab.Eventually(v.T, "/readyz says: "+why, func() bool {
		status, body := v.a.Ready()
		return status == 503 && strings.Contains(body, "[-] default/source: the volume is out of reach") && strings.Contains(body, why)
	})
	v.a.Has(0, "lockfs_volume_available")
	lab.Eventually(v.T, "the log says it", func() bool { return v.a.Said("the volume is out of reach") })
	resp, err := http.Get(strings.TrimSuffix(v.a.URL, "metrics") + "healthz")
	if err != nil || resp.StatusCode != 200 { // a restart of lockfs mends no volume
		v.T.Errorf("/healthz: %v, %v", resp, err)
	}
	resp.Body.Close()
}

// isBack waits until a reaches its volume.
func (v *overClient) isBack() {
	v.T.Helper()
	v.a.Has(1, "lockfs_volume_available")
	lab.Eventually(v.T, "/readyz is 200", func() bool { status, _ := v.a.Ready(); return status == 200 })
}

// held has a program write to f through a, and another wait for f on b.
func (v *overClient) held() (holder *lab.Agent, fd int, waiter *lab.Agent, waits <-chan lab.Result) {
	v.T.Helper()
	v.Write("f", "one\n")
	holder, waiter = lab.NewAgent(v.T), lab.NewAgent(v.T)
	fd = holder.Open(v.a.Path("f"), unix.O_WRONLY|unix.O_APPEND)
	waits = waiter.Start(lab.Call{Op: "open", Path: v.b.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND})
	v.WaitFor("f")
	return holder, fd, waiter, waits
}

// handedOver waits until the waiter has f, and makes sure that its former holder is out and that
// both views work.
func (v *overClient) handedOver(holder *lab.Agent, fd int, waiter *lab.Agent, waits <-chan lab.Result) {
	v.T.Helper()
	granted := lab.Await(v.T, "the waiter's open", waits)
	if granted.Errno != 0 {
		v.T.Fatalf("the waiter's open: %v", granted.Err())
	}
	if got := holder.Do(lab.Call{Op: "write", FD: fd, Data: "late\n"}); got.Errno == 0 {
		v.T.Error("who had the file on the former client has written")
	}
	waiter.Must(lab.Call{Op: "write", FD: granted.N, Data: "two\n"})
	waiter.Must(lab.Call{Op: "close", FD: granted.N})
	again := lab.NewAgent(v.T)
	again.Sees(v.a.Path("f"), "one\ntwo\n")
	fd = again.Open(v.a.Path("f"), unix.O_WRONLY|unix.O_APPEND)
	again.Must(lab.Call{Op: "write", FD: fd, Data: "three\n"})
	again.Must(lab.Call{Op: "close", FD: fd})
	again.Sees(v.b.Path("f"), "one\ntwo\nthree\n")
}

// A client that dies and is mounted again: the view finds the volume by itself, readiness
// and metrics say what is wrong meanwhile, and the directory below the mount is never
// taken for the volume.
func TestClientDiesAndIsMountedAgain(t *testing.T) {
	t.Parallel()
	v := newOverClient(t)
	holder, fd, waiter, waits := v.held()
	if err := os.Mkdir(v.InSource("dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	v.Write("dir/old", "old")
	reader := lab.NewAgent(t)
	r := reader.Open(v.a.Path("dir/old"), unix.O_RDONLY)

	inside, removed := lab.NewAgent(t), lab.NewAgent(t) // stand in directories
	for _, dir := range []string{"dir/sub", "removed"} {
		if err := os.Mkdir(v.InSource(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	inside.Must(lab.Call{Op: "chdir", Path: v.a.Path("dir/sub")})
	removed.Must(lab.Call{Op: "chdir", Path: v.a.Path("removed")})

	client := v.Own["a"]
	client.Kill()
	v.isOut("transport endpoint is not connected")
	reader.Fails(lab.Call{Op: "open", Path: v.a.Path("f"), Flags: unix.O_RDONLY}, unix.ENOTCONN)

	if err := unix.Unmount(client.Dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	v.isOut("it is not mounted")
	reader.Fails(lab.Call{Op: "open", Path: v.a.Path("new"), Flags: unix.O_WRONLY | unix.O_CREAT, Mode: 0o644}, unix.ENOTCONN)
	if bare, err := os.ReadDir(client.Dir); len(bare) > 0 || err != nil {
		t.Errorf("the directory below the volume has %v, %v", bare, err)
	}
	if len(waits) > 0 {
		t.Error("the file was handed on before its holder was seen to be gone")
	}

	if err := os.Rename(v.InSource("removed"), v.InSource("elsewhere")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(v.InSource("removed"), 0o755); err != nil {
		t.Fatal(err)
	}
	v.again()
	v.isBack()
	v.handedOver(holder, fd, waiter, waits)
	inside.Sees("../old", "old")
	here := inside.Must(lab.Call{Op: "open", Path: "new", Flags: unix.O_WRONLY | unix.O_CREAT, Mode: 0o644})
	inside.Must(lab.Call{Op: "write", FD: here, Data: "new"})
	inside.Must(lab.Call{Op: "close", FD: here})
	lab.NewAgent(t).Sees(v.b.Path("dir/sub/new"), "new")
	inside.Must(lab.Call{Op: "rename", Path: "new", Path2: "../newer"})
	removed.Fails(lab.Call{Op: "open", Path: "new", Flags: unix.O_WRONLY | unix.O_CREAT, Mode: 0o644}, unix.ESTALE)
	if got := reader.Do(lab.Call{Op: "pread", FD: r, N: 10}); got.Errno == 0 {
		t.Error("a descriptor of the former client reads on")
	}
	lab.NewAgent(t).Sees(v.a.Path("dir/old"), "old")
	if !v.a.Said("the volume is within reach again") {
		t.Errorf("the log does not say it:\n%s", v.a.Log)
	}
}

// A volume that is unmounted lazily, and mounted again while its former client lives, as
// files are open there: the view goes over to the new one.
func TestVolumeIsMountedAnew(t *testing.T) {
	t.Parallel()
	v := newOverClient(t)
	holder, fd, waiter, waits := v.held()
	client := v.Own["a"]
	if err := unix.Unmount(client.Dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	v.isOut("what was mounted there before is served on")
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "1"})
	holder.Must(lab.Call{Op: "ftruncate", FD: fd, Off: 4})
	v.again()
	v.isBack()
	v.handedOver(holder, fd, waiter, waits)
}

// Another volume in the place of one is not taken for it.
func TestAnotherVolumeInItsPlace(t *testing.T) {
	t.Parallel()
	v := newOverClient(t)
	v.Write("f", "mine")
	other := lab.NewVolume(t)
	other.Mount("o", "--name", "another").Stop()
	client := v.Own["a"]
	client.Kill()
	if err := unix.Unmount(client.Dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	stranger := lab.StartClient(t, other.Source, client.Dir, lab.ClientConfig{})
	v.isOut("it is another volume, default/another")
	lab.NewAgent(t).Fails(lab.Call{Op: "open", Path: v.a.Path("new"), Flags: unix.O_WRONLY | unix.O_CREAT, Mode: 0o644}, unix.ENOTCONN)
	stranger.Kill()
	if err := unix.Unmount(client.Dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	v.again()
	v.isBack()
	lab.NewAgent(t).Sees(v.a.Path("f"), "mine")
}
