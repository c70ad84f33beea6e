package serve

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// muteEnv makes the test binary serve a view there that does not answer, and
// ask itself whether it does.
const muteEnv = "LOCKFS_TEST_MUTE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(muteEnv); dir != "" {
		if err := serveMute(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serveMute mounts a FUSE file system at dir which takes requests and answers
// none, asks it several questions, and says how many threads they take.
func serveMute(dir string) error {
	by := newAskers(1)
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Mount("mute", dir, "fuse.mute", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		return err
	}
	request := make([]byte, 1<<17)
	if _, err := unix.Read(fd, request); err != nil {
		return err
	}
	answer := make([]byte, 16+64) // to INIT: fuse_out_header, fuse_init_out
	binary.NativeEndian.PutUint32(answer, uint32(len(answer)))
	copy(answer[8:], request[8:16])                  // unique
	binary.NativeEndian.PutUint32(answer[16:], 7)    // major
	binary.NativeEndian.PutUint32(answer[20:], 31)   // minor
	binary.NativeEndian.PutUint32(answer[36:], 4096) // max_write
	if _, err := unix.Write(fd, answer); err != nil {
		return err
	}
	var p probe
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	for range 3 {
		if err := p.ask(ctx, by, dir); !errors.Is(err, errNotAnswered) {
			return fmt.Errorf("a mute view: %w", err)
		}
	}
	if _, err := unix.Read(fd, request); err != nil { // from here on the kernel waits for the answer
		return err
	}
	asking := 0
	for ; asking == 0; time.Sleep(time.Millisecond) { // a thread that still runs does not say in which call
		tasks, err := filepath.Glob("/proc/self/task/*/syscall")
		if err != nil {
			return err
		}
		for _, name := range tasks {
			b, _ := os.ReadFile(name)
			if strings.HasPrefix(string(b), fmt.Sprint(unix.SYS_STATFS, " ")) {
				asking++
			}
		}
	}
	fmt.Println("threads that ask:", asking)
	select {}
}

// A daemon dies of SIGKILL also while it waits for its own answer, and its view
// with it; and however often it asks, one thread waits.
func TestKilledWhileItAsksItself(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount")
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), muteEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	abort := func() { _ = unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH) }
	defer abort()
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "threads that ask: 1\n" {
		t.Errorf("%q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	dead := make(chan error, 1)
	go func() { dead <- cmd.Wait() }()
	select {
	case <-dead:
	case <-time.After(time.Minute):
		t.Error("it does not die")
		abort()
		<-dead
	}
	if err := statfs(dir); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("the view of a dead daemon: %v", err)
	}
}

// Askers have no descriptor that was opened after they were made, and take none
// from the others.
func TestAskersHaveNoDescriptors(t *testing.T) {
	for range 50 {
		by := newAskers(1)
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		var own unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &own); err != nil {
			t.Fatal(err)
		}
		err = by.do(func() error {
			if unix.Gettid() == unix.Getpid() {
				return errors.New("on the main thread")
			}
			var st unix.Stat_t
			err := unix.Fstat(int(f.Fd()), &st)
			if err == nil && (st.Dev != own.Dev || st.Ino != own.Ino) {
				return unix.EBADF // the number is that of a file that was closed meanwhile
			}
			return err
		})
		if err != unix.EBADF {
			t.Fatalf("an asker's descriptor: %v, want EBADF", err)
		}
		if _, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
}

// An asker is a thread of Go's like others, which wakes the one that waits for the
// next timer. If it cannot, the process ends with status 2 and no word: this one.
func TestAskersAndTimers(t *testing.T) {
	by := newAskers(2)
	var working sync.WaitGroup
	for range 8 {
		working.Go(func() {
			for range 2000 {
				_ = by.do(func() error {
					time.AfterFunc(50*time.Microsecond, func() {})
					return nil
				})
				time.Sleep(rand.N(100 * time.Microsecond))
			}
		})
	}
	working.Wait()
}

func TestReadyz(t *testing.T) {
	good := Check{Name: "ns/good", Ready: func(context.Context) error { return nil }}
	bad := Check{Name: "ns/bad", Ready: func(context.Context) error { return errors.New("lost\nand gone") }}
	noted := Check{Name: "ns/noted", Ready: good.Ready, Notes: func() []string { return []string{"mounted soft", "nocto"} }}
	note := Check{Name: "config", Ready: bad.Ready, Advisory: true}
	for _, c := range []struct {
		checks []Check
		status int
		body   string
	}{
		{nil, 200, "ready\n"},
		{[]Check{good, note}, 200, "[+] ns/good: ok\n[!] config: lost; and gone\nready\n"},
		{[]Check{noted}, 200, "[+] ns/noted: ok\n[*] ns/noted: mounted soft\n[*] ns/noted: nocto\nready\n"},
		{[]Check{bad, good}, 503, "[-] ns/bad: lost; and gone\n[+] ns/good: ok\nnot ready\n"},
		{[]Check{New(Config{Namespace: "a", Name: "b"}).Check()}, 503, "[-] a/b: it is not mounted\nnot ready\n"},
	} {
		w := httptest.NewRecorder()
		NewMux(func() []Check { return c.checks }).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if w.Code != c.status || w.Body.String() != c.body {
			t.Errorf("%d %q, want %d %q", w.Code, w.Body, c.status, c.body)
		}
	}
	w := httptest.NewRecorder()
	NewMux(func() []Check { return []Check{bad} }).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	if w.Code != 200 {
		t.Errorf("/healthz: %d", w.Code)
	}
}
