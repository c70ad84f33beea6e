package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/internal/retry"
)

// DialConfig says where etcd is and who we are.
type DialConfig struct {
	// Endpoints are URLs, such as https://10.0.0.1:2379 or unix:///run/etcd.sock.
	// Required; all of one cluster.
	Endpoints []string

	// CAFile verifies the servers; CertFile and KeyFile are shown to them. They
	// are read again for each connection. All are PEM. Without any of them, https
	// endpoints are verified by the system's roots.
	CAFile, CertFile, KeyFile string

	// Username and Password log in, if etcd has authentication on.
	Username, Password string

	// PasswordFile has the password in place of Password. It is read again for
	// each login: etcd asks for one whenever it has forgotten the last.
	PasswordFile string

	// DialTimeout bounds the first answer. The zero value means 5 s.
	DialTimeout time.Duration

	// Logger is told of the connection. The zero value discards.
	Logger *slog.Logger
}

// The client pings a silent connection, and drops it when no answer comes. gRPC pings no
// more often than every 10 s. The connection is dropped too if data is not acknowledged
// within the same timeout (TCP_USER_TIMEOUT): a renewal meets that first. members deals with
// requests that are acknowledged and not answered.
const (
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 3 * time.Second
)

// reconnect is how soon a server that was away is found again. gRPC's default
// waits a second at first and up to two minutes later on: leases would end that
// a server which is back could have renewed.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
	MinConnectTimeout: keepAliveTimeout,
}

// Dial connects to etcd and returns when a majority of it has answered. Its
// errors are one line that names the endpoints.
func Dial(ctx context.Context, cfg DialConfig) (*clientv3.Client, error) {
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = 5 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	endpoints := strings.Join(cfg.Endpoints, ",")
	client, err := dial(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to etcd at %q: %w", endpoints, err)
	}
	cfg.Logger.Info("connected to etcd", "endpoints", endpoints)
	return client, nil
}

func dial(ctx context.Context, cfg DialConfig) (*clientv3.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.DialTimeout)
	defer cancel()
	conf := clientv3.Config{
		Endpoints:            cfg.Endpoints,
		DialTimeout:          cfg.DialTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		DialOptions:          append(newMembers(len(cfg.Endpoints), cfg.Logger).options(), grpc.WithConnectParams(reconnect)),
		Logger:               zap.NewNop(), // its errors come back to us
	}
	if cfg.CAFile != "" || cfg.CertFile != "" || cfg.KeyFile != "" {
		files := transport.TLSInfo{TrustedCAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile}
		creds, err := newRotatingTLS(files.ClientConfig)
		if err != nil {
			return nil, err
		}
		if !plain(cfg.Endpoints) {
			conf.DialOptions = append(conf.DialOptions, grpc.WithTransportCredentials(creds))
		}
	}
	client, err := connect(ctx, conf)
	if cfg.Username == "" {
		return client, err
	}
	// Logging in is part of clientv3.New, which on a dead connection says no more
	// than that it timed out. The first connection knew better.
	switch {
	case err == nil:
		if err := client.Close(); err != nil {
			return nil, err
		}
	case !errors.Is(err, rpctypes.ErrUserEmpty):
		return nil, err
	}
	conf.Username, conf.Password = cfg.Username, cfg.Password
	if cfg.PasswordFile == "" {
		return connect(ctx, conf)
	}
	if conf.Password, err = readPassword(cfg.PasswordFile); err != nil {
		return nil, err
	}
	if client, err = connect(ctx, conf); err != nil {
		return nil, err
	}
	client.Auth = rotatingLogin{client.Auth, cfg.PasswordFile}
	return client, nil
}

// plain reports whether there is no TLS on the way to the endpoints: the first
// says so for all, as in clientv3.
func plain(endpoints []string) bool {
	return len(endpoints) == 0 || strings.HasPrefix(endpoints[0], "http:") || strings.HasPrefix(endpoints[0], "unix:")
}

func connect(ctx context.Context, conf clientv3.Config) (*clientv3.Client, error) {
	client, err := clientv3.New(conf)
	if err != nil {
		return nil, err
	}
	if err := probe(ctx, client); err != nil {
		_ = client.Close() // nothing of it was used
		return nil, err
	}
	return client, nil
}

// probe asks for a linearizable read until it is answered. 'Permission denied' is an answer
// too. It asks below clientv3, which would wait for a connection for as long as ctx allows
// and then not say why there was none.
func probe(ctx context.Context, client *clientv3.Client) error {
	kv := pb.NewKVClient(client.ActiveConnection())
	var r retry.Retrier
	var why error
	for {
		_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("/lockfs/"), CountOnly: true})
		switch {
		case err == nil, status.Code(err) == codes.PermissionDenied:
			return nil
		case refused(err):
			return reason(err)
		case why == nil || ctx.Err() == nil:
			why = reason(err)
		}
		if err := r.Pause(ctx); err != nil {
			return fmt.Errorf("%w: %w", err, why)
		}
	}
}

// reason is etcd's own error, or the first line of gRPC's: a server that is no
// etcd is quoted in several.
func reason(err error) error {
	if err := rpctypes.Error(err); errors.As(err, new(rpctypes.EtcdError)) {
		return err
	}
	line, _, _ := strings.Cut(status.Convert(err).Message(), "\n")
	return errors.New(line)
}
