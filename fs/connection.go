package fs

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/procid"
)

// connection is a view's connection to the kernel: its mount, the library's server that reads
// requests, and the notices that the kernel is sent. It knows of FS only what answers requests.
//
//	connection.go  its life, from the mount to the end
//	device.go      /dev/fuse, and the library's server on it
//	notices.go     what the kernel is told unasked
//	handing.go     a pause, and what is handed on in it (ADR 0050)
//	relay.go       what stands between a server and the kernel while the server begins or ends
type connection struct {
	requests   fuse.RawFileSystem // answers them
	options    *fuse.MountOptions
	mountpoint string
	log        *slog.Logger
	recorded   bool // a next process goes on if this one dies

	device int          // -1: the library has mounted the view
	init   *fuse.InitIn // what the kernel has begun with
	dev    string       // of the mount, as /proc names it; "" if unknown
	abort  int          // ends the connection; -1: this daemon cannot

	serving atomic.Pointer[serving]
	pausing atomic.Bool // see divert
	resends bool        // what the former server has read is to be sent again
	former  []*serving  // servers that may still have requests; used while it is paused, or fails
	handing handing

	answering sync.Mutex
	answer    []byte // GUARDED_BY(answering); see initAnswer

	ended     chan struct{} // closed when there is no request, nor will be
	ending    sync.Once     // closes ended
	failed    error         // why it could not go on; nil: it was unmounted, or handed on
	unmounted bool          // by part
	cut       bool          // programs can ask nothing more
}

// mount mounts the view, and returns its first server.
func (c *connection) mount(root bool) (*serving, error) {
	first, err := c.mountBy(root)
	if err != nil {
		return nil, err
	}
	c.init = first.server.KernelSettings()
	return first, nil
}

func (c *connection) mountBy(root bool) (*serving, error) {
	if !root { // by fusermount3
		server, err := newLibraryServer(c.requests, c.mountpoint, c.options)
		return &serving{server, -1, make(chan struct{})}, err
	}
	device, err := mountDevice(c.mountpoint, c.options)
	if err != nil {
		return nil, err
	}
	first, err := c.firstServer(device)
	if err != nil {
		_ = unix.Unmount(c.mountpoint, unix.MNT_DETACH)
		unix.Close(device)
		return nil, err
	}
	c.device = device
	return first, nil
}

// identify finds out by which device number others know a new mount.
func (c *connection) identify() {
	// Not WaitMount: it polls the mount, and a killed daemon that waits for its own answer never
	// ends.
	var err error
	if c.dev, err = (procid.Proc{}).MountDev(os.Getpid(), c.mountpoint); err != nil {
		c.log.Warn("an open that would wait for its own process waits: it cannot be refused with EDEADLK", slog.Any("error", err))
	}
}

// control opens what ends the connection. It does not look at the mountpoint: if this process has
// taken the view over, another view may be there by now.
func (c *connection) control() {
	if c.device < 0 || c.dev == "" {
		return
	}
	var err error
	if c.abort, err = openAbort(c.device, c.dev); err != nil {
		c.log.Warn("the view cannot be cut off from other mount namespaces", slog.Any("error", err))
	}
}

// serve begins to answer the kernel. The view has ended when its last server has.
func (c *connection) serve(s *serving) {
	c.serving.Store(s)
	go func() {
		s.server.Serve()
		if c.serving.Load() == s && !c.pausing.Load() {
			c.end(nil)
		}
		close(s.done)
	}()
}

func (c *connection) end(why error) {
	c.ending.Do(func() {
		c.failed = why
		close(c.ended)
	})
}

// fail ends a connection that cannot go on after a pause: programs get errors. It has ended when
// all that was read is answered.
func (c *connection) fail(why error, relays ...*relay) {
	c.log.Error("the view cannot go on; its programs get errors", slog.Any("error", why))
	c.pausing.Store(true) // the end of a server is not that of the view
	c.cutOff()
	servers := append(slices.Clone(c.former), c.serving.Load())
	go func() {
		for _, s := range servers {
			<-s.done
		}
		for _, r := range relays { // which write to the device
			<-r.done
		}
		c.end(why)
	}()
}

// If an unmounted view has not ended after this time, another mount namespace still has it.
const elsewhere = time.Second

// unmount takes the view off its mountpoint, unless it has gone from there. EBUSY: it is in use.
func (c *connection) unmount() error {
	if c.gone() {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- c.disconnect() }()
	tick := time.NewTicker(elsewhere)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			c.cut = err == nil
			return err
		case <-tick.C:
			if c.gone() {
				c.log.Warn("the view is in another mount namespace as well", slog.String("mountpoint", c.mountpoint), slog.Bool("cut_off", c.abort >= 0))
				return nil
			}
		}
	}
}

// gone reports whether the view has left its mountpoint, where another may be by now.
func (c *connection) gone() bool {
	select {
	case <-c.ended: // by somebody else
		return true
	default: // not ended: no other view has our device number
	}
	dev, err := (procid.Proc{}).MountDev(os.Getpid(), c.mountpoint)
	return c.unmounted || c.dev != "" && (err != nil || dev != c.dev)
}

// covered reports whether another mount is at the mountpoint.
func (c *connection) covered() bool {
	dev, err := (procid.Proc{}).MountDev(os.Getpid(), c.mountpoint)
	return err == nil && c.dev != "" && dev != c.dev
}

// unmountTries is how often unmount is tried while the view is in use.
const unmountTries = 5

// disconnect unmounts the view, and waits for the end of its requests. EBUSY: it is in use.
func (c *connection) disconnect() (err error) {
	if c.device < 0 {
		return c.serving.Load().server.Unmount()
	}
	pause := 5 * time.Millisecond
	for range unmountTries {
		if err = unix.Unmount(c.mountpoint, 0); err == nil {
			<-c.ended
			return nil
		}
		time.Sleep(pause)
		pause = 2*pause + 5*time.Millisecond
	}
	return err
}

// part ends the connection after unmount, as far as this daemon can: then cut is set. inUse:
// unmount has failed.
func (c *connection) part(inUse bool) error {
	if inUse {
		if err := c.detach(); err != nil {
			return fmt.Errorf("unmount %s: %w", c.mountpoint, err)
		}
		c.cut = c.device >= 0
	}
	// In another mount namespace, requests without locks would go on under an old policy.
	c.cut = c.cut || c.cutOff()
	c.unmounted = true
	return nil
}

// detach removes a view in use from the tree. Only root can also end its connection.
func (c *connection) detach() error {
	if c.device >= 0 {
		return unix.Unmount(c.mountpoint, unix.MNT_DETACH|unix.MNT_FORCE)
	}
	out, err := exec.Command("fusermount3", "-uz", c.mountpoint).CombinedOutput()
	if err != nil {
		return fmt.Errorf("fusermount3 -uz: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// cutOff ends the connection in all mount namespaces: programs get errors. It reports success.
func (c *connection) cutOff() bool {
	if c.abort < 0 {
		return false
	}
	_, err := unix.Write(c.abort, []byte("1"))
	return err == nil
}

func (c *connection) close() {
	if c.device >= 0 {
		if err := unix.Close(c.device); err != nil {
			c.log.Debug("cannot close the view's connection", slog.Any("error", err))
		}
	}
	if c.abort >= 0 {
		unix.Close(c.abort)
	}
}
