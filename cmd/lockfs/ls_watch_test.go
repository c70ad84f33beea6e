package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// A list is printed anew when it has changed, and an outage is told of once.
func TestWatchPrintsChanges(t *testing.T) {
	one, two := []lockmgr.Entry{{Token: 1}}, []lockmgr.Entry{{Token: 1}, {Token: 2}}
	away := errors.New("no answer")
	answers := []any{one, one, away, away, one, two, away, two}
	ctx, end := context.WithCancel(t.Context())
	tick := make(chan time.Time)
	close(tick)
	var out, errs bytes.Buffer
	w := watcher{
		list: func(context.Context) ([]lockmgr.Entry, error) {
			if len(answers) == 0 {
				end()
				return nil, ctx.Err()
			}
			answer := answers[0]
			answers = answers[1:]
			if err, ok := answer.(error); ok {
				return nil, err
			}
			return answer.([]lockmgr.Entry), nil
		},
		print: func(w io.Writer, entries []lockmgr.Entry, _ time.Time) error {
			_, err := fmt.Fprintln(w, len(entries))
			return err
		},
		out: &out, errs: &errs, size: func() (int, bool) { return 0, false },
	}
	if err := w.run(ctx, tick); err != nil || out.String() != "1\n2\n" || errs.String() != "lockfs: no answer; trying again\nlockfs: no answer; trying again\n" {
		t.Errorf("%v, %q, %q", err, &out, &errs)
	}
	answers = []any{away}
	if err := w.run(t.Context(), tick); !errors.Is(err, away) {
		t.Errorf("without a list to begin with: %v", err)
	}
}

// A terminal has what fits, and what is wrong.
func TestWatchOnATerminal(t *testing.T) {
	entries := []lockmgr.Entry{{Held: true}, {}, {}, {}, {}}
	var out bytes.Buffer
	w := watcher{
		print: func(w io.Writer, entries []lockmgr.Entry, _ time.Time) error {
			_, err := io.WriteString(w, "PATH\n"+strings.Repeat("entry\n", len(entries)))
			return err
		},
		out: &out, what: "/d of ns/v",
	}
	if err := w.redraw(entries, errors.New("no\nanswer"), 7); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\x1b[K\n")
	if !strings.HasSuffix(lines[0], "/d of ns/v: 1 held, 4 waiting; the lock service does not answer: no; answer") {
		t.Errorf("the head is %q", lines[0])
	}
	if got := strings.Join(lines[2:], ","); !strings.HasPrefix(got, "PATH,entry,entry,… and 3 more,") {
		t.Errorf("below is %q", got)
	}
}

// A serial line, or the terminal that expect(1) makes, does not say how many rows it has.
func TestTerminalWithoutSize(t *testing.T) {
	tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer tty.Close()
	if rows, terminal := terminalRows(tty); terminal {
		t.Errorf("a terminal of %d rows", rows)
	}
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	if rows, terminal := terminalRows(tty); !terminal || rows != 24 {
		t.Errorf("%d rows, %v; want 24", rows, terminal)
	}
}
