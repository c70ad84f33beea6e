package serve

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/renew"
)

var (
	errNotMounted  = errors.New("it is not mounted")
	errNotAnswered = errors.New("the view does not answer")
)

// Ready returns what is wrong, or nil if the view answers and its sessions are held. It returns
// when ctx ends, even if the view hangs.
func (v *Volume) Ready(ctx context.Context) error {
	state, mounted := v.State()
	if !mounted {
		return errNotMounted
	}
	if err := v.health.err(); err != nil {
		return err
	}
	if state != renew.Held {
		return fmt.Errorf("its lock session is %v", state)
	}
	return v.probe.ask(ctx, v.askers, v.Mountpoint())
}

// Notes returns the rules that do not hold on the volume, accepted or not.
func (v *Volume) Notes() []string { return v.health.notes() }

// probe asks a view whether it answers, one question at a time, so that a hung view keeps only one
// thread.
type probe struct {
	mu      sync.Mutex
	pending *reply // GUARDED_BY(mu); nil if there is none
}

type reply struct {
	done chan struct{} // closed when err is set
	err  error
}

func (p *probe) ask(ctx context.Context, by askers, mountpoint string) error {
	p.mu.Lock()
	r := p.pending
	if r == nil {
		r = &reply{done: make(chan struct{})}
		p.pending = r
		go func() {
			r.err = by.do(func() error { return statfs(mountpoint) })
			p.mu.Lock()
			p.pending = nil
			p.mu.Unlock()
			close(r.done)
		}()
	}
	p.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errNotAnswered, ctx.Err())
	}
}

func statfs(mountpoint string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(mountpoint, &st); err != nil {
		return fmt.Errorf("%w: statfs: %w", errNotAnswered, err)
	}
	if st.Type != unix.FUSE_SUPER_MAGIC {
		return errNotMounted
	}
	return nil
}
