// Package checkvolume tries which rules of docs/SEMANTICS.md hold on a network volume, as
// two of its clients have it mounted.
//
// Each client is a Site: it mounts a view over a directory of the check's own on the volume,
// and makes the system calls that it is told to, through that view. One Site tells the other,
// in the same process or by HTTP. All calls on one view are one owner (--scope node), so
// that one process can be the programs of both.
//
// A rule that is broken was seen broken. A rule that is ok may break another time.
package checkvolume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBroken says that at least one rule does not hold.
var ErrBroken = errors.New("rules do not hold on this volume as it is mounted")

// ErrUndecided says that at least one rule could not be tried to its end.
var ErrUndecided = errors.New("rules are undecided: mend what is said above, and run the check again")

// errUnable says that a party can make no calls any more.
var errUnable = errors.New("the check cannot go on")

// party is a Site on this or another machine.
type party interface {
	do(ctx context.Context, c call) reply
}

type check struct {
	ctx  context.Context
	a, b party
	n    int // names given out
}

func (c *check) name() string {
	c.n++
	return fmt.Sprint("f", c.n)
}

// rule is a rule of docs/SEMANTICS.md, and how to try it.
type rule struct {
	number string // in docs/SEMANTICS.md
	what   string
	rounds int
	try    func(c *check, round int) error
}

// budget bounds the time for one rule: on a slow volume it gets fewer rounds.
const budget = 6 * time.Second

// notTried are rules that a check cannot try by itself.
var notTried = []struct{ number, what string }{
	{"19", "what was written is on the server before the lock is given on (--sync)"},
	{"30", "a server that hangs, a client that dies and is mounted again"},
}

// run tries all rules over two parties whose views are mounted, and prints to out.
func run(ctx context.Context, a, b party, out io.Writer) error {
	c := &check{ctx: ctx, a: a, b: b}
	var broken, undecided int
	fmt.Fprintf(out, "%-6s %-58s %s\n", "RULE", "WHAT", "RESULT")
	for _, r := range rules {
		tried, bad, why := c.rounds(r)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(why, errUnable):
			return why
		case bad > 0:
			broken++
			fmt.Fprintf(out, "%-6s %-58s BROKEN (%d of %d): %v\n", r.number, r.what, bad, tried, why)
		case why != nil:
			undecided++
			fmt.Fprintf(out, "%-6s %-58s undecided: %v\n", r.number, r.what, why)
		default:
			fmt.Fprintf(out, "%-6s %-58s ok (%d)\n", r.number, r.what, tried)
		}
	}
	for _, r := range notTried {
		fmt.Fprintf(out, "%-6s %-58s not tried\n", r.number, r.what)
	}
	var errs []error
	if broken > 0 {
		errs = append(errs, fmt.Errorf("%d of %d %w", broken, len(rules), ErrBroken))
	}
	if undecided > 0 {
		errs = append(errs, fmt.Errorf("%d of %d %w", undecided, len(rules), ErrUndecided))
	}
	return errors.Join(errs...)
}

// rounds tries one rule, and again from its first round if a round was undecided. It returns
// the number of rounds, how many broke the rule, and the first break. If no round broke the
// rule, an error is why it is undecided.
func (c *check) rounds(r rule) (tried, bad int, why error) {
	for range 2 {
		if tried, bad, why = c.roundsOnce(r); !saysNothing(why) {
			break
		}
	}
	return tried, bad, why
}

func (c *check) roundsOnce(r rule) (tried, bad int, why error) {
	for end := time.Now().Add(budget); tried < r.rounds && (tried == 0 || time.Now().Before(end)); tried++ {
		err := r.try(c, tried)
		switch {
		case c.ctx.Err() != nil:
			return tried, bad, why
		case errors.Is(err, errUnable):
			return tried, bad, err
		case saysNothing(err):
			if bad == 0 {
				why = err
			}
			return tried, bad, why
		case err != nil:
			bad++
			if why == nil {
				why = err
			}
		}
	}
	return tried, bad, why
}

// saysNothing tells errors that speak neither for a rule nor against it: etcd did not answer
// in time, or there is no space.
func saysNothing(err error) bool {
	return errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

func (c *check) must(by party, calls ...call) error {
	for _, call := range calls {
		if r := by.do(c.ctx, call); r.failed() {
			return fmt.Errorf("%s %s: %w", call.Do, call.Path, r.err())
		}
	}
	return nil
}

// holds makes a party read a file, which must contain want.
func (c *check) holds(by party, path, want string) error {
	r := by.do(c.ctx, call{Do: "read", Path: path})
	switch {
	case r.failed():
		return fmt.Errorf("read %s: %w", path, r.err())
	case r.Data != want:
		return fmt.Errorf("a reader found %s where %s was written", excerpt(r.Data), excerpt(want))
	case r.N != len(want):
		return fmt.Errorf("a reader was told %d bytes, and there are %d", r.N, len(want))
	}
	return nil
}

func (c *check) both(one, two call) (a, b reply) {
	done := make(chan reply, 1)
	go func() { done <- c.a.do(c.ctx, one) }()
	b = c.b.do(c.ctx, two)
	return <-done, b
}

func excerpt(s string) string {
	if len(s) > 20 {
		return fmt.Sprintf("%q… (%d bytes)", s[:20], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// call is a request to a Site. Paths are below the view.
type call struct {
	Do    string
	Path  string `json:",omitempty"`
	Path2 string `json:",omitempty"`
	Data  string `json:",omitempty"`
	FD    int    `json:",omitempty"`
	Flags int    `json:",omitempty"`
	N     int    `json:",omitempty"`
}

type reply struct {
	Errno  syscall.Errno `json:",omitempty"`
	Error  string        `json:",omitempty"` // an error that is not a system call's
	Unable string        `json:",omitempty"` // why the party makes no calls any more
	Data   string        `json:",omitempty"`
	N      int           `json:",omitempty"`
}

func (r reply) failed() bool { return r.Errno != 0 || r.Error != "" || r.Unable != "" }

// err describes a call's failure.
func (r reply) err() error {
	switch {
	case r.Unable != "":
		return fmt.Errorf("%w: %s", errUnable, r.Unable)
	case r.Error != "":
		return errors.New(r.Error)
	case r.Errno != 0:
		return fmt.Errorf("%s (%w)", unix.ErrnoName(r.Errno), r.Errno)
	default:
		return nil
	}
}

var errSuccess = errors.New("success")

// outcome describes how a call ended, for a message that tells of two calls or of one that
// should have failed.
func (r reply) outcome() error {
	if !r.failed() {
		return errSuccess
	}
	return r.err()
}
