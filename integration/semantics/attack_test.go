package semantics

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// nobody is a user without rights.
const nobody = 65534

// A directory that the kernel knows as the user's own becomes a symlink to
// root's, by the hand of another node. Nothing the user then does through the
// view, with root's daemon as its arm, touches root's directory.
func TestSwappedDirectory(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	root := filepath.Join(v.Dir, "root")
	for _, d := range []string{root, v.InSource("d")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"file", "other"} {
			if err := os.WriteFile(filepath.Join(d, name), []byte("root's"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(filepath.Join(d, "dir"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"", "file", "other", "dir"} {
		if err := os.Lchown(filepath.Join(v.InSource("d"), name), nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	u := v.NewUser(nobody, 0)
	u.Must(lab.Call{Op: "chdir", Path: a.Path("d")}) // the kernel's idea of d stays what it is
	u.Must(lab.Call{Op: "mode", Path: "file"})

	swap := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	swap(v.InSource("d"), v.InSource("d.old"))
	if err := os.Symlink(root, v.InSource("d")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []lab.Call{
		{Op: "open", Path: "new", Flags: unix.O_WRONLY | unix.O_CREAT},
		{Op: "open", Path: "file", Flags: unix.O_WRONLY | unix.O_TRUNC},
		{Op: "open", Path: "file", Flags: unix.O_RDONLY},
		{Op: "truncate", Path: "file"},
		{Op: "mkdir", Path: "made"},
		{Op: "link", Path: "file", Path2: "linked"},
		{Op: "rename", Path: "other", Path2: "renamed"},
		{Op: "unlink", Path: "file"},
		{Op: "rmdir", Path: "dir"},
	} {
		r := u.Do(c) // in the directory it stands in, or not at all
		if c.Op == "open" && r.Errno == 0 {
			u.Do(lab.Call{Op: "write", FD: r.N, Data: "the user's"})
			if got := u.Do(lab.Call{Op: "pread", FD: r.N, N: 100}); got.Data == "root's" && c.Flags == unix.O_RDONLY {
				var st unix.Stat_t
				if err := unix.Stat(filepath.Join(root, "file"), &st); err != nil || st.Atim != st.Mtim {
					t.Error("the user read root's file")
				}
			}
		}
	}
	var names []string
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{"dir", "file", "other"}; !slices.Equal(names, want) {
		t.Errorf("root's directory has %q, want %q", names, want)
	}
	for _, name := range []string{"file", "other"} {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(got) != "root's" {
			t.Errorf("root's %s holds %q, %v", name, got, err)
		}
	}
}

// Between the LOOKUP that finds nothing and the CREATE, another node makes the
// name: root's, 0600. The user's open(O_CREAT) must be refused like any other
// open of it, whoever wins.
func TestCreateMeetsForeignFile(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	if err := os.Chmod(v.Source, 0o777); err != nil {
		t.Fatal(err)
	}
	u := v.NewUser(nobody, 0)
	const rounds = 100
	met := 0
	for i := range rounds {
		began := time.Now()
		pending := u.Start(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_RDWR | unix.O_CREAT, Mode: 0o600})
		time.Sleep(time.Duration(i) * 20 * time.Millisecond / rounds) // from before the LOOKUP to after the CREATE
		fd, err := unix.Open(v.InSource("f"), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
		if err == nil {
			if _, err := unix.Write(fd, []byte("secret")); err != nil {
				t.Fatal(err)
			}
			unix.Close(fd)
		}
		r := lab.Await(t, "open", pending)
		var st unix.Stat_t
		if err := unix.Stat(v.InSource("f"), &st); err != nil {
			t.Fatal(err)
		}
		switch {
		case r.Errno == 0 && st.Uid != nobody:
			t.Fatalf("the user opened root's file and reads %q", u.Do(lab.Call{Op: "pread", FD: r.N, N: 10}).Data)
		case err == nil && st.Uid != 0:
			t.Fatal("the user owns what root made")
		case r.Errno == unix.ENOLCK, lab.Forgotten(r, began): // the machine is slow
		case r.Errno != 0 && r.Errno != unix.EACCES && r.Errno != unix.EBUSY:
			// EBUSY: the name changed twice in one system call, by its removal
			// after the last round and its creation in this one.
			t.Fatalf("open: %v, want EACCES", r.Errno)
		}
		if r.Errno != 0 {
			met++
		} else {
			u.Must(lab.Call{Op: "close", FD: r.N})
		}
		if err := os.Remove(v.InSource("f")); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("of %d opens %d met root's file", rounds, met)
}
