package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// 'lockfs ls --watch' asks the lock service every watchEvery, and waits watchTimeout for an
// answer.
const (
	watchEvery   = time.Second
	watchTimeout = 5 * time.Second
)

// watcher prints a list repeatedly: in place on a terminal, elsewhere after a change.
type watcher struct {
	list  func(context.Context) ([]lockmgr.Entry, error)
	print func(w io.Writer, entries []lockmgr.Entry, now time.Time) error
	out   io.Writer
	errs  io.Writer
	size  func() (rows int, terminal bool)
	what  string // the headline on a terminal
}

// run fails if it cannot get the first list. It reports later failures and goes on.
func (w *watcher) run(ctx context.Context, tick <-chan time.Time) error {
	var shown []lockmgr.Entry
	var failing error
	for first := true; ; first = false {
		entries, err := w.ask(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			entries = shown
		}
		rows, terminal := w.size()
		switch {
		case terminal:
			err = w.redraw(entries, err, rows)
		case err != nil:
			if failing == nil {
				fmt.Fprintf(w.errs, "lockfs: %v; trying again\n", err)
			}
			failing, err = err, nil
		default:
			failing = nil
			if first || !reflect.DeepEqual(entries, shown) {
				err = w.print(w.out, entries, time.Now())
			}
		}
		if err != nil {
			return err
		}
		shown = entries
		select {
		case <-tick:
		case <-ctx.Done():
			return nil
		}
	}
}

func (w *watcher) ask(ctx context.Context) ([]lockmgr.Entry, error) {
	bounded, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	return w.list(bounded)
}

func (w *watcher) redraw(entries []lockmgr.Entry, failed error, rows int) error {
	held := 0
	for _, e := range entries {
		if e.Held {
			held++
		}
	}
	now := time.Now()
	head := fmt.Sprintf("%s  %s: %d held, %d waiting", now.Format(time.TimeOnly), w.what, held, len(entries)-held)
	if failed != nil {
		head += "; the lock service does not answer: " + strings.ReplaceAll(failed.Error(), "\n", "; ")
	}
	var list bytes.Buffer
	if err := w.print(&list, entries, now); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSuffix(list.String(), "\n"), "\n")
	if room := max(rows-3, 1); len(lines) > room {
		lines = append(lines[:room-1], fmt.Sprintf("… and %d more", len(lines)-room+1))
	}
	// Cursor home. Lines do not wrap, each clears the rest of its row, and the rows below
	// are cleared.
	var b strings.Builder
	b.WriteString("\x1b[H\x1b[?7l")
	for _, line := range append([]string{head, ""}, lines...) {
		b.WriteString(line + "\x1b[K\n")
	}
	b.WriteString("\x1b[?7h\x1b[J")
	_, err := io.WriteString(w.out, b.String())
	return err
}

// terminalRows returns the height of a terminal; ok is false if the writer is none, or has no size, as
// a serial line.
func terminalRows(w io.Writer) (rows int, terminal bool) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, false
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Row), size.Row > 0
}
