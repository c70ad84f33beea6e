package integration

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// overClient is a volume with a view a over a client that the test ends, b over another.
type overClient struct {
	*volume
	a, b *watched
}

func newOverClient(t *testing.T) *overClient {
	t.Helper()
	v := newVolumeOverClients(t, clientConfig{}, "--wait", "-1")
	v.inMemory()
	return &overClient{v, v.mountWatched("a"), v.mountWatched("b")}
}

// again mounts a's client where it was.
func (v *overClient) again() { startClient(v.t, v.source, v.own["a"].dir, clientConfig{}) }

// isOut waits until a does not reach its volume, and says why.
func (v *overClient) isOut(why string) {
	v.t.Helper()
	eventually(v.t, "/readyz says: "+why, func() bool {
		status, body := v.a.ready()
		return status == 503 && strings.Contains(body, "[-] default/source: the volume is out of reach") && strings.Contains(body, why)
	})
	v.a.has(0, "lockfs_volume_available")
	if !v.a.said("the volume is out of reach") {
		v.t.Errorf("the log does not say it:\n%s", v.a.log)
	}
	resp, err := http.Get(strings.TrimSuffix(v.a.url, "metrics") + "healthz")
	if err != nil || resp.StatusCode != 200 { // a restart of lockfs mends no volume
		v.t.Errorf("/healthz: %v, %v", resp, err)
	}
	resp.Body.Close()
}

// isBack waits until a reaches its volume.
func (v *overClient) isBack() {
	v.t.Helper()
	v.a.has(1, "lockfs_volume_available")
	eventually(v.t, "/readyz is 200", func() bool { status, _ := v.a.ready(); return status == 200 })
}

// held has a program write to f through a, and another wait for f on b.
func (v *overClient) held() (holder *agent, fd int, waiter *agent, waits <-chan result) {
	v.t.Helper()
	v.write("f", "one\n")
	holder, waiter = newAgent(v.t), newAgent(v.t)
	fd = holder.open(v.a.path("f"), wronly|appends)
	waits = waiter.start(call{Op: "open", Path: v.b.path("f"), Flags: wronly | appends})
	v.waitFor("f")
	return holder, fd, waiter, waits
}

// handedOver waits until the waiter has f, and makes sure that who had it is out and that
// both views work.
func (v *overClient) handedOver(holder *agent, fd int, waiter *agent, waits <-chan result) {
	v.t.Helper()
	granted := await(v.t, "the waiter's open", waits)
	if granted.Errno != 0 {
		v.t.Fatalf("the waiter's open: %v", granted.Err())
	}
	if got := holder.do(call{Op: "write", FD: fd, Data: "late\n"}); got.Errno == 0 {
		v.t.Error("who had the file on the former client has written")
	}
	waiter.must(call{Op: "write", FD: granted.N, Data: "two\n"})
	waiter.must(call{Op: "close", FD: granted.N})
	again := newAgent(v.t)
	again.sees(v.a.path("f"), "one\ntwo\n")
	fd = again.open(v.a.path("f"), wronly|appends)
	again.must(call{Op: "write", FD: fd, Data: "three\n"})
	again.must(call{Op: "close", FD: fd})
	again.sees(v.b.path("f"), "one\ntwo\nthree\n")
}

// A client that dies and is mounted again: the view finds the volume by itself, readiness
// and metrics say what is wrong meanwhile, and the directory below the mount is never
// taken for the volume.
func TestClientDiesAndIsMountedAgain(t *testing.T) {
	v := newOverClient(t)
	holder, fd, waiter, waits := v.held()
	if err := os.Mkdir(v.inSource("dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	v.write("dir/old", "old")
	reader := newAgent(t)
	r := reader.open(v.a.path("dir/old"), rdonly)

	inside, removed := newAgent(t), newAgent(t) // stand in directories
	for _, dir := range []string{"dir/sub", "removed"} {
		if err := os.Mkdir(v.inSource(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	inside.must(call{Op: "chdir", Path: v.a.path("dir/sub")})
	removed.must(call{Op: "chdir", Path: v.a.path("removed")})

	client := v.own["a"]
	client.kill()
	v.isOut("transport endpoint is not connected")
	reader.fails(call{Op: "open", Path: v.a.path("f"), Flags: rdonly}, unix.ENOTCONN)

	if err := unix.Unmount(client.dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	v.isOut("it is not mounted")
	reader.fails(call{Op: "open", Path: v.a.path("new"), Flags: wronly | unix.O_CREAT, Mode: 0o644}, unix.ENOTCONN)
	if bare, err := os.ReadDir(client.dir); len(bare) > 0 || err != nil {
		t.Errorf("the directory below the volume has %v, %v", bare, err)
	}
	if len(waits) > 0 {
		t.Error("the file was handed on before its holder was seen to be gone")
	}

	if err := os.Rename(v.inSource("removed"), v.inSource("elsewhere")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(v.inSource("removed"), 0o755); err != nil {
		t.Fatal(err)
	}
	v.again()
	v.isBack()
	v.handedOver(holder, fd, waiter, waits)
	inside.sees("../old", "old")
	here := inside.must(call{Op: "open", Path: "new", Flags: wronly | unix.O_CREAT, Mode: 0o644})
	inside.must(call{Op: "write", FD: here, Data: "new"})
	inside.must(call{Op: "close", FD: here})
	newAgent(t).sees(v.b.path("dir/sub/new"), "new")
	inside.must(call{Op: "rename", Path: "new", Path2: "../newer"})
	removed.fails(call{Op: "open", Path: "new", Flags: wronly | unix.O_CREAT, Mode: 0o644}, unix.ESTALE)
	if got := reader.do(call{Op: "pread", FD: r, N: 10}); got.Errno == 0 {
		t.Error("a descriptor of the former client reads on")
	}
	newAgent(t).sees(v.a.path("dir/old"), "old")
	if !v.a.said("the volume is within reach again") {
		t.Errorf("the log does not say it:\n%s", v.a.log)
	}
}

// A volume that is unmounted lazily, and mounted again while its former client lives, as
// files are open there: the view goes over to the new one.
func TestVolumeIsMountedAnew(t *testing.T) {
	v := newOverClient(t)
	holder, fd, waiter, waits := v.held()
	client := v.own["a"]
	if err := unix.Unmount(client.dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	v.isOut("what was mounted there before is served on")
	holder.must(call{Op: "write", FD: fd, Data: "1"})
	holder.must(call{Op: "ftruncate", FD: fd, Off: 4})
	v.again()
	v.isBack()
	v.handedOver(holder, fd, waiter, waits)
}

// Another volume in the place of one is not taken for it.
func TestAnotherVolumeInItsPlace(t *testing.T) {
	v := newOverClient(t)
	v.write("f", "mine")
	other := newVolume(t)
	other.mount("o", "--name", "another").stop()
	client := v.own["a"]
	client.kill()
	if err := unix.Unmount(client.dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	stranger := startClient(t, other.source, client.dir, clientConfig{})
	v.isOut("it is another volume, default/another")
	newAgent(t).fails(call{Op: "open", Path: v.a.path("new"), Flags: wronly | unix.O_CREAT, Mode: 0o644}, unix.ENOTCONN)
	stranger.kill()
	if err := unix.Unmount(client.dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	v.again()
	v.isBack()
	newAgent(t).sees(v.a.path("f"), "mine")
}
