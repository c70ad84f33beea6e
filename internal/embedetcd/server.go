package embedetcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// pollInterval is how often a joined mount tries the flock: Close could not interrupt a
	// blocking one.
	pollInterval = 100 * time.Millisecond

	probeInterval = 10 * time.Millisecond

	// maxBackoff bounds the pause after failed attempts; the first is pollInterval.
	maxBackoff = 10 * time.Second
)

// Config is the place of one lock service.
type Config struct {
	// Dir is the state directory of one SOURCE, see DirFor: an absolute path.
	// It is created. Required.
	Dir string

	// Source is the SOURCE directory. The server has a flock on it, so that no other user or state
	// directory serves a second lock service. Required.
	Source string

	// Logger gets takeovers, failures and etcd's own warnings. nil discards them.
	Logger *slog.Logger
}

// Server serves the lock service of one SOURCE, or stands by to take over. It is safe for
// concurrent use.
type Server struct {
	// Constant.
	dir    string
	source string
	logger *slog.Logger
	cancel context.CancelFunc
	done   chan struct{} // closed when run has returned
	failed chan error    // run's first failure, for Start

	adopted chan *process // that run goes on with; capacity 1

	mu     sync.Mutex
	serves *process        // GUARDED_BY(mu); nil: another mount serves
	lent   *process        // GUARDED_BY(mu); see Lend
	left   *process        // GUARDED_BY(mu); see Leave
	tell   func(fds []int) // GUARDED_BY(mu); see Tell
}

// Start joins the lock service in cfg.Dir, or serves it. It returns when the endpoint answers;
// from then on the Server takes over whenever the serving process ends, until Close.
//
// Errors: ErrStateDir; ErrServedElsewhere; *ExitError when this process's etcd ended before it
// answered; ctx's when nobody answers.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if err := prepareDir(cfg.Dir); err != nil {
		return nil, err
	}
	logger := cfg.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	runCtx, cancel := context.WithCancel(context.Background())
	s := &Server{
		dir:    cfg.Dir,
		source: cfg.Source,
		logger: logger.With("dir", cfg.Dir),
		cancel: cancel,
		done:   make(chan struct{}),
		failed: make(chan error, 1),

		adopted: make(chan *process, 1),
	}
	go s.run(runCtx)
	if err := s.waitAnswer(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Endpoint is the same for every mount of the SOURCE, over every takeover.
func (s *Server) Endpoint() string { return EndpointOf(s.dir) }

// Close stops standing by, and stops this process's etcd unless it was left to another process, so
// that another mount takes over. It returns when that is done. Close may be repeated.
func (s *Server) Close() {
	s.cancel()
	<-s.done
	select {
	case p := <-s.adopted:
		p.stop()
	default:
	}
}

func (s *Server) waitAnswer(ctx context.Context) error {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	var probeErr error
	for {
		if probeErr = probe(ctx, socketPath(s.dir)); probeErr == nil {
			return nil
		}
		select {
		case err := <-s.failed:
			return err
		case <-ctx.Done():
			err := fmt.Errorf("the embedded lock service in %s does not answer%s: %w (%v)",
				s.dir, holder(s.dir), context.Cause(ctx), probeErr)
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.serves != nil { // without its log etcd goes on, and never has a leader
				err = fmt.Errorf("%w; %s", err, ifDamaged)
			}
			return err
		case <-tick.C:
		}
	}
}

// run takes the flock whenever it is free and serves while it has it.
func (s *Server) run(ctx context.Context) {
	defer close(s.done)
	backoff := pollInterval
	for ctx.Err() == nil {
		pause := pollInterval
		began := time.Now()
		err := s.tryServe(ctx)
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, errHeld) {
			if time.Since(began) > maxBackoff {
				backoff = pollInterval // it did serve: this is a new trouble
			}
			pause, backoff = backoff, min(2*backoff, maxBackoff)
			s.report(err, pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		case p := <-s.adopted:
			s.logger.Info("serving the embedded lock service of the former daemon")
			if err := s.watch(ctx, p); err != nil {
				s.report(err, 0)
			}
		}
	}
}

// tryServe serves until ctx ends, which is no error, or etcd does. errHeld: another process
// serves.
func (s *Server) tryServe(ctx context.Context) error {
	lock, err := tryLock(lockPath(s.dir))
	if err != nil {
		return err
	}
	source, err := lockSource(s.source)
	if err != nil {
		lock.Close()
		return err
	}
	p, err := spawn(s.dir, source, lock, s.logger)
	if err != nil {
		return err
	}
	s.logger.Info("serving the embedded lock service", "pid", p.pid)
	return s.watch(ctx, p)
}

// watch returns when ctx has ended, which is no error, or the process has.
func (s *Server) watch(ctx context.Context, p *process) error {
	s.mu.Lock()
	s.serves = p
	s.told()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.serves = nil
		s.told()
	}()
	left := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.left == p
	}
	select {
	case <-p.done:
		if !left() {
			return p.exitError(s.dir)
		}
		<-ctx.Done()
	case <-ctx.Done():
		if !left() {
			p.stop()
		}
	}
	return nil
}

func (s *Server) report(err error, pause time.Duration) {
	select {
	case s.failed <- err:
	default:
	}
	s.logger.Error("embedded lock service failed; no lock is granted until a mount of this SOURCE serves it again",
		"error", err, "retry_in", pause)
}
