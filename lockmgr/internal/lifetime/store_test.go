package lifetime

import (
	"log/slog"
	"testing"
)

// An era ends once, and what was asked in it tells nothing of the next.
func TestStore(t *testing.T) {
	s := NewStore()
	first := s.Era
	s.Saw(7, first)
	s.Saw(5, first) // overtaken
	if s.Newest != 7 {
		t.Errorf("the newest revision is %d, want 7", s.Newest)
	}
	l := Begin(first, "s", slog.New(slog.DiscardHandler))
	if !s.SetBack(first) || first.Err() == nil || !l.Ended() {
		t.Error("the era goes on, or a session of it")
	}
	if s.Newest != 0 || s.Era == first || s.Era.Err() != nil {
		t.Errorf("the next era is at %d, over: %v", s.Newest, s.Era.Err())
	}
	s.Saw(9, first)
	if s.SetBack(first) || s.Newest != 0 || s.Era.Err() != nil {
		t.Errorf("an answer of the first era moved the next, to %d", s.Newest)
	}
}
