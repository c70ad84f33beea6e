package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/internal/config"
)

// Name is the driver's, as StorageClasses and PersistentVolumes have it.
const Name = "lockfs.io"

// Config says what a Driver serves.
type Config struct {
	// Controller serves the controller instead of the node service.
	Controller bool
	// Node is the name of this node. Required without Controller.
	Node string
	// KubeletDir is the directory below which the kubelet has volumes published. Required without
	// Controller.
	KubeletDir string
	// Volumes returns the volumes whose views this node has. Required.
	Volumes func() []config.Volume
	// Inline lets pods name a volume of their own namespace themselves.
	Inline bool
	// Version is the program's, for people.
	Version string
	// Logger is used for everything. Required.
	Logger *slog.Logger
}

// Driver answers the calls of Kubernetes.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	csi.UnimplementedControllerServer

	cfg Config
	log *slog.Logger

	look chan struct{} // has room for one: what is mounted may have changed

	waitContainer time.Duration // for the mounts of one container; for all, before the kubelet's directories
	atOnce        int           // containers that are waited for

	mu        sync.Mutex
	busy      map[string]bool   // GUARDED_BY(mu); what an operation is under way for
	cancelled map[string]bool   // GUARDED_BY(mu); those of busy that must not go on
	working   map[string]int    // GUARDED_BY(mu); operations in each volume
	ended     chan struct{}     // GUARDED_BY(mu); closed when the next operation has ended
	reported  map[string]string // GUARDED_BY(mu); what keeps a volume from being repaired
	given     map[string]*given // GUARDED_BY(mu); by volume, until a repair has succeeded
}

// New returns a Driver.
func New(cfg Config) *Driver {
	return &Driver{
		cfg: cfg, log: cfg.Logger, look: make(chan struct{}, 1), waitContainer: waitContainer, atOnce: atOnce, busy: make(map[string]bool), cancelled: make(map[string]bool),
		working: make(map[string]int), ended: make(chan struct{}), reported: make(map[string]string), given: make(map[string]*given),
	}
}

// Run serves at a unix socket until ctx ends, and repairs published mounts.
func (d *Driver) Run(ctx context.Context, endpoint string) error {
	l, err := listen(endpoint)
	if err != nil {
		return err
	}
	d.log.Info("serving CSI", slog.String("endpoint", endpoint), slog.Bool("controller", d.cfg.Controller))
	return d.serve(ctx, l)
}

func (d *Driver) serve(ctx context.Context, l net.Listener) error {
	serving, cancel := context.WithCancel(ctx)
	server := grpc.NewServer(grpc.UnaryInterceptor(d.logged))
	csi.RegisterIdentityServer(server, d)
	var repairs sync.WaitGroup
	if d.cfg.Controller {
		csi.RegisterControllerServer(server, d)
	} else {
		csi.RegisterNodeServer(server, d)
		repairs.Go(func() { d.keepRepairing(serving) })
	}
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	err := server.Serve(l)
	cancel()
	repairs.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// listen puts its socket in the place of a former driver's.
func listen(endpoint string) (net.Listener, error) {
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok || path == "" {
		return nil, fmt.Errorf("endpoint %q: want unix:///path/of/a/socket", endpoint)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	l.SetUnlinkOnClose(false) // the socket may be the next driver's by then
	return l, nil
}

// logged logs calls that fail. Requests may have secrets, so they are not logged.
func (d *Driver) logged(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	answer, err := handle(ctx, req)
	if err != nil {
		d.log.Warn("a call of Kubernetes has failed", slog.String("call", info.FullMethod), slog.Any("error", err))
	}
	return answer, err
}

// maxWorking is how many operations in one volume may be under way. More would only hang with a
// volume that does: the others wait their turn.
const maxWorking = 8

// begin waits until an operation may begin. While it waits, another for the same subject is refused.
func (d *Driver) begin(ctx context.Context, subject, volume string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy[subject] {
		return status.Errorf(codes.Aborted, "%s: an operation is still under way", subject)
	}
	d.busy[subject] = true
	for volume != "" && d.working[volume] == maxWorking {
		ended := d.ended
		d.mu.Unlock()
		select {
		case <-ended:
		case <-ctx.Done():
		}
		d.mu.Lock()
		if ctx.Err() != nil {
			d.free(subject)
			return status.Errorf(codes.Unavailable, "the volume %s does not answer, or too slowly: %d operations wait for it", volume, maxWorking)
		}
	}
	d.working[volume]++
	return nil
}

// beginAfter begins the second part of an operation, which may be for another subject. It is refused
// if the operation was cancelled.
func (d *Driver) beginAfter(first, subject string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.cancelled[first]:
		return status.Errorf(codes.Aborted, "%s: it was unpublished meanwhile", subject)
	case d.busy[subject]:
		return status.Errorf(codes.Aborted, "%s: an operation is still under way", subject)
	}
	d.busy[subject] = true
	d.working[""]++
	return nil
}

// cancel keeps the operation that is under way for a subject from a second part.
func (d *Driver) cancel(subject string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy[subject] {
		d.cancelled[subject] = true
	}
}

// free lets a next operation begin for the subject. d.mu is held.
func (d *Driver) free(subject string) {
	delete(d.busy, subject)
	delete(d.cancelled, subject)
}

func (d *Driver) end(subject, volume string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free(subject)
	if d.working[volume]--; d.working[volume] == 0 {
		delete(d.working, volume)
	}
	close(d.ended)
	d.ended = make(chan struct{})
}

// do runs an operation that may hang with its volume; it then goes on after ctx. Until it has ended,
// another for the same subject is refused with Aborted. volume may be "": it touches none.
func (d *Driver) do(ctx context.Context, subject, volume string, op func() error) error {
	if err := d.begin(ctx, subject, volume); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		err := op()
		d.end(subject, volume)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return status.Errorf(codes.DeadlineExceeded, "%s: %v", subject, ctx.Err())
	}
}
