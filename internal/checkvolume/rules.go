package checkvolume

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The workloads' sizes: a second or two each on a volume of 100 requests a second.
const (
	appendsEach = 40
	recordsEach = 8
	recordLines = 10
	countsEach  = 25
)

var rules = []rule{
	{"1", "one writer: another's open is refused while one writes", 10, oneWriter},
	{"6", "appends of both clients are kept", 2, appended},
	{"6", "records of many writes stay in one piece", 2, records},
	{"6", "a counter that both count up", 2, counted},
	{"6", "who waited writes behind what the holder wrote", 8, waited},
	{"7", "who waited for a file that was replaced gets the new one", 8, replacedUnderWaiter},
	{"8", "two names of a file are one lock", 5, hardLinks},
	{"12", "a client killed while it writes hands over its lock", 1, killed},
	{"15", "a reader sees what was written: longer, shorter", 30, rewritten},
	{"15", "a reader sees what was written: of the same size", 30, sameSize},
	{"15", "a reader finds a name that was missing before", 30, madeElsewhere},
	{"15", "a reader finds a file removed and made anew", 30, madeAnew},
	{"15", "a reader finds a file saved by rename", 30, savedByRename},
	{"15", "a reader is never without a file that is saved by rename", 2, savedUnderReader},
	{"15", "a directory in a file's place is found", 5, directoryInPlace},
	{"29", "one winner: O_EXCL", 20, exclusive},
	{"29", "one winner: rename", 20, renamed},
	{"29", "one winner: mkdir", 20, madeDirectory},
}

func oneWriter(c *check, _ int) error {
	f := c.name()
	held := c.a.do(c.ctx, call{Do: "open", Path: f, Flags: unix.O_WRONLY | unix.O_CREAT})
	if held.failed() {
		return held.err()
	}
	r := c.b.do(c.ctx, call{Do: "open", Path: f, Flags: unix.O_WRONLY | unix.O_NONBLOCK})
	if err := c.must(c.a, call{Do: "close", FD: held.N}); err != nil {
		return err
	}
	if !r.failed() {
		_ = c.b.do(c.ctx, call{Do: "close", FD: r.N})
	}
	if r.Errno != unix.EAGAIN {
		return fmt.Errorf("an open beside a writer: %w, want EAGAIN", r.outcome())
	}
	return nil
}

func appended(c *check, _ int) error {
	f := c.name()
	a, b := c.both(call{Do: "append", Path: f, Data: "a", N: appendsEach}, call{Do: "append", Path: f, Data: "b", N: appendsEach})
	if a.failed() || b.failed() {
		return fmt.Errorf("append: %w, %w", a.outcome(), b.outcome())
	}
	var want int
	seen := make(map[string]bool)
	r := c.b.do(c.ctx, call{Do: "read", Path: f})
	for line := range strings.Lines(r.Data) {
		seen[line] = true
	}
	for _, who := range []string{"a", "b"} {
		for i := range appendsEach {
			if seen[fmt.Sprintf("%s %d\n", who, i)] {
				want++
			}
		}
	}
	if lines := strings.Count(r.Data, "\n"); want != 2*appendsEach || lines != want {
		return fmt.Errorf("%d of %d lines kept, in %d", want, 2*appendsEach, lines)
	}
	return nil
}

func records(c *check, _ int) error {
	f := c.name()
	a, b := c.both(call{Do: "records", Path: f, Data: "a", N: recordsEach}, call{Do: "records", Path: f, Data: "b", N: recordsEach})
	if a.failed() || b.failed() {
		return fmt.Errorf("write: %w, %w", a.outcome(), b.outcome())
	}
	r := c.a.do(c.ctx, call{Do: "read", Path: f})
	kept := 0
	for _, who := range []string{"a", "b"} {
		for i := range recordsEach {
			if strings.Contains(r.Data, record(who, i)) {
				kept++
			}
		}
	}
	if kept != 2*recordsEach || len(r.Data) != 2*recordsEach*len(record("a", 0)) {
		return fmt.Errorf("%d of %d records in one piece", kept, 2*recordsEach)
	}
	return nil
}

func record(who string, i int) string {
	var s strings.Builder
	for line := range recordLines {
		fmt.Fprintf(&s, "%s %03d %03d\n", who, i, line)
	}
	return s.String()
}

func counted(c *check, _ int) error {
	f := c.name()
	if err := c.must(c.a, call{Do: "save", Path: f, Data: "0"}); err != nil {
		return err
	}
	a, b := c.both(call{Do: "count", Path: f, N: countsEach}, call{Do: "count", Path: f, N: countsEach})
	if a.failed() || b.failed() {
		return fmt.Errorf("count: %w, %w", a.outcome(), b.outcome())
	}
	return c.holds(c.a, f, strconv.Itoa(2*countsEach))
}

// wait makes b open a file that a holds, calls a function meanwhile, and returns b's
// descriptor after a has closed its own.
func (c *check) wait(f string, flags int, meanwhile func(fd int) error) (int, error) {
	held := c.a.do(c.ctx, call{Do: "open", Path: f, Flags: unix.O_WRONLY | unix.O_APPEND})
	if held.failed() {
		return 0, fmt.Errorf("open: %w", held.err())
	}
	waiting := make(chan reply, 1)
	go func() { waiting <- c.b.do(c.ctx, call{Do: "open", Path: f, Flags: flags}) }()
	err := c.must(c.b, call{Do: "pause", N: 50}) // no harm if it does not wait yet
	if err == nil {
		err = meanwhile(held.N)
	}
	if e := c.must(c.a, call{Do: "close", FD: held.N}); err == nil {
		err = e
	}
	r := <-waiting
	if err == nil && r.failed() {
		err = fmt.Errorf("the open that waited: %w", r.err())
	}
	return r.N, err
}

func waited(c *check, _ int) error {
	f := c.name()
	if err := c.must(c.a, call{Do: "save", Path: f, Data: "one\n"}); err != nil {
		return err
	}
	if err := c.holds(c.b, f, "one\n"); err != nil { // b's client caches it
		return err
	}
	fd, err := c.wait(f, unix.O_WRONLY|unix.O_APPEND, func(held int) error {
		return c.must(c.a, call{Do: "write", FD: held, Data: "two\n"})
	})
	if err != nil {
		return err
	}
	if err := c.must(c.b, call{Do: "write", FD: fd, Data: "three\n"}, call{Do: "close", FD: fd}); err != nil {
		return err
	}
	return c.holds(c.a, f, "one\ntwo\nthree\n")
}

func replacedUnderWaiter(c *check, _ int) error {
	f := c.name()
	if err := c.must(c.a, call{Do: "save", Path: f, Data: "old\n"}); err != nil {
		return err
	}
	if err := c.holds(c.b, f, "old\n"); err != nil {
		return err
	}
	fd, err := c.wait(f, unix.O_WRONLY|unix.O_APPEND, func(int) error {
		return c.must(c.a, call{Do: "save", Path: f + ".new", Data: "new\n"}, call{Do: "rename", Path: f + ".new", Path2: f})
	})
	if err != nil {
		return err
	}
	if err := c.must(c.b, call{Do: "write", FD: fd, Data: "me\n"}, call{Do: "close", FD: fd}); err != nil {
		return err
	}
	return c.holds(c.a, f, "new\nme\n")
}

func hardLinks(c *check, _ int) error {
	f := c.name()
	if err := c.must(c.a, call{Do: "save", Path: f, Data: "x"}, call{Do: "link", Path: f, Path2: f + ".link"}); err != nil {
		return err
	}
	held := c.a.do(c.ctx, call{Do: "open", Path: f, Flags: unix.O_WRONLY})
	if held.failed() {
		return held.err()
	}
	r := c.b.do(c.ctx, call{Do: "open", Path: f + ".link", Flags: unix.O_WRONLY | unix.O_NONBLOCK})
	if err := c.must(c.a, call{Do: "close", FD: held.N}); err != nil {
		return err
	}
	if !r.failed() {
		_ = c.b.do(c.ctx, call{Do: "close", FD: r.N})
	}
	if r.Errno != unix.EAGAIN {
		return fmt.Errorf("an open by the other name: %w, want EAGAIN", r.outcome())
	}
	return nil
}

func killed(c *check, _ int) error {
	f := c.name()
	held := c.b.do(c.ctx, call{Do: "open", Path: f, Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND})
	if held.failed() {
		return held.err()
	}
	if err := c.must(c.b, call{Do: "write", FD: held.N, Data: "one\n"}, call{Do: "kill view"}); err != nil {
		return err
	}
	_ = c.b.do(c.ctx, call{Do: "close", FD: held.N})
	err := c.must(c.a, call{Do: "append", Path: f, Data: "a", N: 1})
	if e := c.must(c.b, call{Do: "mount view"}); err == nil {
		err = e // the rules after this one need the view
	}
	if err != nil {
		return err
	}
	return c.holds(c.b, f, "one\na 0\n")
}

func rewritten(c *check, round int) error {
	want := fmt.Sprint(round, strings.Repeat("x", round*100%777))
	if err := c.must(c.a, call{Do: "save", Path: "rewritten", Data: want}); err != nil {
		return err
	}
	return c.holds(c.b, "rewritten", want)
}

func sameSize(c *check, round int) error {
	want := fmt.Sprintf("%05d", round)
	if err := c.must(c.a, call{Do: "overwrite", Path: "same", Data: want}); err != nil {
		return err
	}
	if err := c.holds(c.b, "same", want); err != nil {
		return err
	}
	want = strings.ReplaceAll(want, "0", "o")
	if err := c.must(c.a, call{Do: "overwrite", Path: "same", Data: want}); err != nil {
		return err
	}
	return c.holds(c.b, "same", want)
}

func madeElsewhere(c *check, _ int) error {
	f := c.name()
	if r := c.b.do(c.ctx, call{Do: "read", Path: f}); r.Errno != unix.ENOENT {
		return fmt.Errorf("read: %w, want ENOENT", r.outcome())
	}
	if err := c.must(c.a, call{Do: "save", Path: f, Data: f}); err != nil {
		return err
	}
	return c.holds(c.b, f, f)
}

func madeAnew(c *check, round int) error {
	f := "anew"
	if round > 0 {
		if err := c.must(c.a, call{Do: "unlink", Path: f}); err != nil {
			return err
		}
	}
	want := fmt.Sprint(round)
	if err := c.must(c.a, call{Do: "save", Path: f, Data: want}); err != nil {
		return err
	}
	return c.holds(c.b, f, want)
}

func savedByRename(c *check, round int) error {
	want := fmt.Sprint(round)
	if err := c.must(c.a, call{Do: "save", Path: "saved.new", Data: want}, call{Do: "rename", Path: "saved.new", Path2: "saved"}); err != nil {
		return err
	}
	return c.holds(c.b, "saved", want)
}

func savedUnderReader(c *check, _ int) error {
	f := c.name()
	if err := c.must(c.a, call{Do: "save", Path: f, Data: "version"}); err != nil {
		return err
	}
	a, b := c.both(call{Do: "saves", Path: f, Data: "version", N: 20}, call{Do: "reads", Path: f, Data: "version", N: 100})
	if a.failed() || b.failed() {
		return fmt.Errorf("save: %w; read: %w", a.outcome(), b.outcome())
	}
	return nil
}

func directoryInPlace(c *check, _ int) error {
	f := c.name()
	if err := c.must(c.a, call{Do: "save", Path: f, Data: "file"}); err != nil {
		return err
	}
	if err := c.holds(c.b, f, "file"); err != nil {
		return err
	}
	if err := c.must(c.a, call{Do: "unlink", Path: f}, call{Do: "mkdir", Path: f}, call{Do: "save", Path: f + "/below", Data: "x"}); err != nil {
		return err
	}
	// A kernel believes the names on a path for a second.
	if err := c.must(c.b, call{Do: "pause", N: 1100}); err != nil {
		return err
	}
	return c.holds(c.b, f+"/below", "x")
}

// winner checks that one of the calls succeeded, and that the other failed with lost.
func winner(a, b reply, lost syscall.Errno) error {
	if a.failed() == b.failed() || a.failed() && a.Errno != lost || b.failed() && b.Errno != lost {
		return fmt.Errorf("two were told %w and %w", a.outcome(), b.outcome())
	}
	return nil
}

func exclusive(c *check, _ int) error {
	one := call{Do: "claim", Path: c.name()}
	a, b := c.both(one, one)
	return winner(a, b, unix.EEXIST)
}

func renamed(c *check, _ int) error {
	f := c.name()
	if err := c.must(c.a, call{Do: "save", Path: f, Data: "job"}); err != nil {
		return err
	}
	if err := c.holds(c.b, f, "job"); err != nil {
		return err
	}
	a, b := c.both(call{Do: "rename", Path: f, Path2: f + ".a"}, call{Do: "rename", Path: f, Path2: f + ".b"})
	return winner(a, b, unix.ENOENT)
}

func madeDirectory(c *check, _ int) error {
	one := call{Do: "mkdir", Path: c.name()}
	a, b := c.both(one, one)
	return winner(a, b, unix.EEXIST)
}
