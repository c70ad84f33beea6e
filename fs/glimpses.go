package fs

import (
	"sync"

	"golang.org/x/sys/unix"
)

// glimpses guess a call's locks without asking the volume. The call looks again under the locks.
type glimpses struct {
	mu sync.Mutex
	at map[dirName]stat // GUARDED_BY(mu)
}

// maxGlimpses is more names than programs change at once. If there are more, all are forgotten.
const maxGlimpses = 1024

func (g *glimpses) note(d dirName, st *stat) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.at == nil || len(g.at) >= maxGlimpses {
		g.at = make(map[dirName]stat)
	}
	g.at[d] = *st
}

func (g *glimpses) forget(d dirName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.at, d)
}

func (g *glimpses) get(d dirName) (stat, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	st, ok := g.at[d]
	return st, ok
}

// seen notes what a name was found to be, unless the volume is local.
func (f *files) seen(d dirName, st *stat, err error) {
	switch {
	case f.backing.isLocal(d.dir.inode.dev):
	case err == nil:
		f.glimpses.note(d, st)
	default:
		f.glimpses.forget(d)
	}
}

// glance returns what a name was when last seen. If it was not seen, glance looks. Only a look
// fails.
func (f *files) glance(d dirName) (st stat, err error) {
	if st, ok := f.glimpses.get(d); ok {
		return st, nil
	}
	if !d.dir.enter() {
		return st, unix.ESTALE
	}
	defer d.dir.leave()
	st, err = f.backing.statAt(d.dir.fd, d.name, unasked)
	f.seen(d, &st, err)
	return st, err
}

func (f *files) glanceAt(d dirName) finding {
	st, err := f.glance(d)
	return finding{fd: -1, st: st, err: err}
}

// lookNow returns what a name is, with the volume's present attributes.
func (f *files) lookNow(d dirName) (st stat, err error) {
	st, err = f.backing.statNow(d)
	f.seen(d, &st, err)
	return st, err
}
