package semantics

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// A program opens a file while another thread of it changes the file's names:
// whatever comes first, others are locked out of every name the file has.
// lockmodel finds how it goes wrong: go run ./lockmodel -model links -mutate nogate
func TestOpenedWhileItsNamesChange(t *testing.T) {
	lab.Over(t, testOpenedWhileItsNamesChange, lab.Local, lab.InLeases.ForLong())
}

func testOpenedWhileItsNamesChange(t *testing.T, on lab.Setup) {
	for _, test := range []struct {
		what   string
		names  []string // before
		change func(m *lab.Mount, name func(string) string) error
		left   string // a name that it has in the end
	}{
		{"link", []string{"f"}, func(m *lab.Mount, name func(string) string) error {
			return unix.Link(m.Path(name("f")), m.Path(name("g")))
		}, "g"},
		{"unlink", []string{"f", "g"}, func(m *lab.Mount, name func(string) string) error {
			return unix.Unlink(m.Path(name("f")))
		}, "g"},
	} {
		t.Run(test.what, func(t *testing.T) {
			v := on.NewVolume(t)
			a, b := v.Mount("a"), v.Mount("b")
			other := lab.NewAgent(t)
			both := 0
			for i := range 200 {
				name := func(s string) string { return fmt.Sprint(s, i) }
				v.Write(name("f"), "")
				for _, n := range test.names {
					if n != "f" {
						if err := os.Link(v.InSource(name("f")), v.InSource(name(n))); err != nil {
							t.Fatal(err)
						}
					}
					var st unix.Stat_t
					if err := unix.Stat(a.Path(name(n)), &st); err != nil { // the mount knows the name
						t.Fatal(err)
					}
				}
				var opening sync.WaitGroup
				fd, openErr := -1, error(nil)
				opening.Go(func() { fd, openErr = unix.Open(a.Path(name("f")), unix.O_WRONLY|unix.O_CLOEXEC, 0) })
				err := test.change(a, name)
				opening.Wait()
				if openErr != nil || err != nil {
					if openErr == nil {
						unix.Close(fd)
					}
					continue // it was refused, or came too late for the name
				}
				both++
				if r := other.Do(lab.Call{Op: "open", Path: b.Path(name(test.left)), Flags: unix.O_WRONLY | unix.O_NONBLOCK}); r.Errno == 0 {
					t.Errorf("round %d: opened for write by two owners", i)
				}
				unix.Close(fd)
			}
			t.Logf("%d rounds in which both succeeded", both)
		})
	}
}
