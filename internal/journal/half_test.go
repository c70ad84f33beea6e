package journal

import (
	"errors"
	"testing"
)

// What counts may take more than half of a half: the log is written anew then too.
func TestJournalIsNotFullBeforeItIs(t *testing.T) {
	j, f := create(t)
	p := j.Part("x")
	_ = p.Complete()
	big := make([]byte, 1<<20)
	for n := range halfSize / len(big) * 6 / 10 { // 307 MiB of 512
		p.Put(1, uint64(n), big)
	}
	full := make(chan struct{})
	j.WhenFull(func() { close(full) })
	for n := range 1 << 20 { // one small record, again and again
		p.Number(2, 1, uint64(n))
		for range 9 {
			p.Number(2, 1, uint64(n))
		}
	}
	j.mu.Lock()
	t.Logf("live %d MiB of %d, end %d MiB, full %v", j.live>>20, halfSize>>20, j.end>>20, j.full)
	j.mu.Unlock()
	if err := p.Complete(); err != nil {
		t.Error(err)
	}
	if _, err := Read(f); err != nil {
		t.Error(err)
	}
	for n := range halfSize / len(big) {
		p.Put(3, uint64(n), big)
	}
	<-full // somebody is told
	if err := p.Complete(); !errors.Is(err, ErrFull) {
		t.Errorf("Complete: %v, want ErrFull", err)
	}
}
