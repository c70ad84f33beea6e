package kubelease

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/lockfs/lockfs/internal/kubeconf"
)

// DialConfig says where the API server is and how much of it we take.
type DialConfig struct {
	// Kubeconfig is a file. The zero value means the cluster that we run in, or
	// else the files that $KUBECONFIG names.
	Kubeconfig string

	// QPS and Burst limit what the locks ask of the API server; renewals are not
	// limited. The zero values mean DefaultQPS and DefaultBurst.
	QPS   float64
	Burst int

	// UserAgent names us in the API server's logs. The zero value leaves it to the
	// client.
	UserAgent string
}

// The limits unless others are asked for. client-go's own, 5 and 10, are two
// locks a second.
const (
	DefaultQPS   = 50
	DefaultBurst = 100
)

// Client reaches an API server.
type Client struct {
	locks, sessions coordinationclient.CoordinationV1Interface
}

// Dial returns a Client. It sends no request.
func Dial(cfg DialConfig) (*Client, error) {
	conf, err := kubeconf.Load(cfg.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	if cfg.QPS < 0 || cfg.Burst < 0 {
		return nil, fmt.Errorf("kubernetes: QPS %v and burst %d: want positive numbers", cfg.QPS, cfg.Burst)
	}
	if cfg.QPS == 0 {
		cfg.QPS = DefaultQPS
	}
	if cfg.Burst == 0 {
		cfg.Burst = DefaultBurst
	}
	if cfg.UserAgent != "" {
		conf.UserAgent = cfg.UserAgent
	}
	conf.QPS, conf.Burst = float32(cfg.QPS), cfg.Burst
	return NewClient(conf)
}

// NewClient returns a Client of an API server that conf describes.
func NewClient(conf *rest.Config) (*Client, error) {
	conf = rest.CopyConfig(conf)
	conf.ContentConfig.ContentType = "application/vnd.kubernetes.protobuf"
	conf.ContentConfig.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	if conf.Dial == nil {
		conf.Dial = dialer.DialContext
	}
	locks, err := coordinationclient.NewForConfig(conf)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	conf = rest.CopyConfig(conf)
	conf.QPS, conf.RateLimiter = -1, nil
	sessions, err := coordinationclient.NewForConfig(conf)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	return &Client{locks: locks, sessions: sessions}, nil
}

// silence is how long a connection may go without an acknowledgement. Otherwise, a server
// that died without closing it would hold up renewals for longer than a TTL: HTTP/2 checks
// after 30 s.
const silence = 3 * time.Second

var dialer = net.Dialer{
	Timeout:         silence,
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence, Interval: time.Second, Count: 3},
	ControlContext: func(_ context.Context, _, _ string, c syscall.RawConn) error {
		var err error
		cerr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
		})
		return errors.Join(cerr, err)
	},
}
