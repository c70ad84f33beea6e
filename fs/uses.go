package fs

import "sync/atomic"

// uses counts the uses of a descriptor. begin starts the first.
type uses struct{ n atomic.Int64 }

func (u *uses) begin() { u.n.Store(1) }

// enter begins one more use; false: all have ended, for ever.
func (u *uses) enter() bool {
	for {
		n := u.n.Load()
		if n == 0 {
			return false
		}
		if u.n.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (u *uses) leave() (last bool) { return u.n.Add(-1) == 0 }
