package lifeline

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/uuid"
)

const holderEnv = "LOCKFS_TEST_LIFELINE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holderEnv); dir != "" {
		l, err := Hold(dir, 7)
		if err != nil {
			panic(err)
		}
		os.Stdout.WriteString(l.ID)
		os.Stdout.Close()
		_, _ = io.ReadAll(os.Stdin)
		return
	}
	os.Exit(m.Run())
}

// A daemon's lifeline can be claimed once it is dead, and not before; nor can
// one that nobody has had.
func TestClaim(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holderEnv+"="+dir)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(out)
	id := string(b)
	if err != nil || len(id) != 36 {
		t.Fatalf("lifeline %q, %v", id, err)
	}
	if _, err := Claim(dir, id); !errors.Is(err, ErrAlive) {
		t.Errorf("the lifeline of a living daemon: %v", err)
	}
	_ = Sweep(dir, func(string) bool { return false })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	l, err := Claim(dir, id)
	if err != nil || l.Dev != 7 {
		t.Fatalf("the lifeline of a dead daemon: %+v, %v", l, err)
	}
	if _, err := Claim(dir, id); !errors.Is(err, ErrAlive) {
		t.Errorf("claimed twice: %v", err)
	}
	l.Leave()
	if err := Sweep(dir, func(s string) bool { return s == id }); err != nil {
		t.Fatal(err)
	}
	if l, err = Claim(dir, id); err != nil {
		t.Fatalf("a lifeline that is needed is not there: %v", err)
	}
	l.Close()
	outside := filepath.Join("..", filepath.Base(dir), id)
	for _, id := range []string{id, uuid.NewString(), "", "..", outside} {
		if _, err := Claim(dir, id); !errors.Is(err, ErrUnknown) {
			t.Errorf("Claim(%q): %v, want ErrUnknown", id, err)
		}
	}
}

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	mine, err := Hold(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := Hold(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	dead.Leave()
	if err := Sweep(dir, func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != mine.ID {
		t.Errorf("left: %v, %v; want %s", left, err, mine.ID)
	}
	mine.Close()
	if left, err = os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left by one that ended in peace: %v, %v", left, err)
	}
}

// A daemon that was killed before its lifeline had a name leaves nothing. One that lives gets its
// lifeline, though others sweep.
func TestSweepBesideHold(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, unnamed+"1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sweep := func() {
		if err := Sweep(dir, func(string) bool { return false }); err != nil {
			t.Error(err)
		}
	}
	sweep()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	stop, swept := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(swept)
		for {
			select {
			case <-stop:
				return
			default:
				sweep()
			}
		}
	}()
	for range 500 {
		l, err := Hold(dir, 1)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := Claim(dir, l.ID); !errors.Is(err, ErrAlive) {
			t.Errorf("a lifeline that is held: %v", err)
		}
		l.Close()
	}
	close(stop)
	<-swept
}

// The kernel ends what is kept, and nobody else.
func TestKeep(t *testing.T) {
	dir := t.TempDir()
	l, err := Hold(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	id := l.ID
	l.Keep()
	l = nil
	for range 3 { // also what closes files that nobody uses
		runtime.GC()
	}
	if _, err := Claim(dir, id); !errors.Is(err, ErrAlive) {
		t.Errorf("the lifeline of a write under way: %v", err)
	}
}
