package commands

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// A volume of an older format is refused on each mount, by the number. With all mounts stopped, the
// command in the message moves it, once. Files stay as they are, and tokens are larger than all
// before. (docs/how-to/upgrade.md.)
func TestUpgradeFromAnOlderFormat(t *testing.T) {
	t.Parallel()
	lends := lab.NewVolume(t)
	lends.Mount("m")
	etcd := "--endpoints=unix://" + lends.StateFile("client.sock")
	v := lab.NewVolume(t, "--name", "v")
	a := v.Mount("a", etcd)
	p := lab.NewAgent(t)
	fd := p.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	p.Must(lab.Call{Op: "write", FD: fd, Data: "before\n"})
	token := p.Token(fd)
	p.Must(lab.Call{Op: "close", FD: fd})
	a.Stop()

	marker := v.InSource(".lockfs-volume")
	now, err := os.ReadFile(marker)
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`"format":\d+`)
	former := string(version.ReplaceAll(now, []byte(`"format":3`)))
	if err := os.WriteFile(marker, []byte(former), 0o644); err != nil {
		t.Fatal(err)
	}
	const record = "/lockfs/default/v/volume"
	if resp, err := lends.Etcd().Get(t.Context(), record); err != nil || len(resp.Kvs) != 1 {
		t.Fatal(resp, err)
	}
	if _, err := lends.Etcd().Put(t.Context(), record, former); err != nil {
		t.Fatal(err)
	}
	var move []string
	for _, name := range []string{"a", "b"} {
		m := v.Refused(etcd)
		found := regexp.MustCompile(`of format 3, which is older than this lockfs: stop every mount of it, then run 'lockfs (move --to \S+ \S+)'`).FindStringSubmatch(m.Log.String())
		if found == nil {
			t.Fatalf("%s: %s", name, m.Log)
		}
		move = strings.Fields(found[1])
	}
	if status, stdout, stderr := lab.Outcome(t, v.Command(append(move, etcd)...)); status != 0 {
		t.Fatalf("%q: exit status %d, %q %q", move, status, stdout, stderr)
	}
	if moved, err := os.ReadFile(marker); err != nil || string(version.Find(moved)) != string(version.Find(now)) {
		t.Errorf("the marker is %s, %v; it was %s", moved, err, now)
	}
	a, b := v.Mount("a", etcd), v.Mount("b", etcd)
	locks(t, a, b)
	fd = p.Open(b.Path("f"), unix.O_WRONLY|unix.O_APPEND)
	if after := p.Token(fd); after <= token {
		t.Errorf("token %d after %d", after, token)
	}
	p.Must(lab.Call{Op: "close", FD: fd})
	if got := v.Read("f"); got != "before\n" {
		t.Errorf("the file holds %q", got)
	}
}
