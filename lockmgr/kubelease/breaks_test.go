package kubelease_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

// A break that arrives after it was withdrawn is told to nobody, whether another attempt to put it was
// answered or not.
func TestLateBreak(t *testing.T) {
	t.Parallel()
	for _, repeats := range []bool{false, true} {
		name, l := newName(), &link{}
		b := newBackendAt(t, l.to(as(mountUser)), name)
		asked, giveUp := context.WithCancel(within(t, patience))
		defer giveUp()
		rule, met := first(late, writes("break", "create"))
		l.obey(func(c *call) fate {
			f := rule(c)
			if f == late && !repeats {
				giveUp()
			}
			return f
		})
		withdrawn, stands := lockmgr.Break{ID: uuid.New()}, lockmgr.Break{ID: uuid.New()}
		if err := b.PutBreak(asked, withdrawn); repeats && err != nil || !repeats && !errors.Is(err, context.Canceled) {
			t.Fatalf("repeats %v: PutBreak: %v", repeats, err)
		}
		for range 2 {
			if err := b.DropBreak(within(t, patience), withdrawn.ID); err != nil {
				t.Fatal(err)
			}
		}
		(<-met).send(t)
		if err := b.PutBreak(within(t, patience), stands); err != nil {
			t.Fatal(err)
		}
		if told := toldOf(t, name, stands.ID); len(told) != 1 || told[0] != stands.ID {
			t.Errorf("repeats %v: told of %v, want %v", repeats, told, stands.ID)
		}
	}
}

// A conflict does not say that the break is there.
func TestContestedBreak(t *testing.T) {
	t.Parallel()
	name, l := newName(), &link{}
	b := newBackendAt(t, l.to(as(mountUser)), name)
	rule, _ := first(contested, writes("break", "create"))
	l.obey(rule)
	br := lockmgr.Break{ID: uuid.New()}
	if err := b.PutBreak(within(t, patience), br); err != nil {
		t.Fatal(err)
	}
	if told := toldOf(t, name, br.ID); len(told) != 1 || told[0] != br.ID {
		t.Errorf("told of %v, want %v", told, br.ID)
	}
}

// toldOf returns the breaks that a new mount is told of, up to the last one and those beside it.
func toldOf(t *testing.T, volume string, last uuid.UUID) (told []uuid.UUID) {
	t.Helper()
	ctx, stop := context.WithCancel(within(t, patience))
	defer stop()
	newBackend(t, volume).WatchBreaks(ctx, func(br lockmgr.Break) {
		if told = append(told, br.ID); br.ID == last {
			stop()
		}
	})
	return told
}
