package fs

import "sync"

// strays are requests of a server that was replaced while it had them, after a pause that was given
// up. The kernel tells the next server of their callers' signals, but that server does not know
// these requests. So while there are strays, a request that waits polls for signals.
type strays struct {
	mu      sync.Mutex
	servers int           // GUARDED_BY(mu)
	there   chan struct{} // closed while servers is not 0; nil: nobody has asked yet. GUARDED_BY(mu)
}

// add counts a server's requests as strays until done is closed.
func (s *strays) add(done <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.servers++; s.servers == 1 {
		close(s.channel())
	}
	go func() {
		<-done
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.servers--; s.servers == 0 {
			s.there = nil
		}
	}()
}

// some returns a channel that is closed while there are strays. Once it was closed, call some
// again.
func (s *strays) some() <-chan struct{} {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.channel()
}

// channel needs mu.
func (s *strays) channel() chan struct{} {
	if s.there == nil {
		s.there = make(chan struct{})
	}
	return s.there
}
