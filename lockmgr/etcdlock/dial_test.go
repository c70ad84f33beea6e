package etcdlock_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// webServer has TLS and is no etcd.
func webServer(t *testing.T, errorLog io.Writer) *httptest.Server {
	s := httptest.NewUnstartedServer(nil)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(errorLog, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func TestDialErrors(t *testing.T) {
	tls := webServer(t, io.Discard)
	cert := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(cert, certificatePEM(tls.Certificate().Raw), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		cfg  etcdlock.DialConfig
		want string
	}{
		{etcdlock.DialConfig{Endpoints: []string{"unix:///nowhere/s"}}, "no such file"},
		{etcdlock.DialConfig{Endpoints: []string{"unix:///nowhere/s"}, Username: "u", Password: "p"}, "no such file"},
		{etcdlock.DialConfig{Endpoints: []string{tls.URL}}, "certificate"},
		{etcdlock.DialConfig{Endpoints: []string{tls.URL}, CAFile: cert}, "404"}, // verified, but no etcd
		{etcdlock.DialConfig{Endpoints: []string{tls.URL}, CAFile: "/nowhere/ca"}, "/nowhere/ca"},
		{etcdlock.DialConfig{Endpoints: []string{"http://127.0.0.1:1"}, CAFile: cert}, "write https://"},
		{etcdlock.DialConfig{}, "endpoint"},
	} {
		text := ""
		for test.cfg.DialTimeout = patience / 100; !strings.Contains(text, test.want) && test.cfg.DialTimeout < patience; test.cfg.DialTimeout *= 2 {
			_, err := etcdlock.Dial(t.Context(), test.cfg) // a slow machine needs some of the time for its handshakes
			if err == nil {
				t.Fatalf("%+v: no error", test.cfg)
			}
			text = err.Error()
		}
		if !strings.Contains(text, test.want) || !strings.Contains(text, strings.Join(test.cfg.Endpoints, ",")) || strings.Contains(text, "\n") {
			t.Errorf("%+v: %s", test.cfg, text)
		}
	}
}

// With authentication on, a user without the right to log in gets an error from Dial, and a user
// without the right to write gets one from the first request, at once.
func TestAuth(t *testing.T) {
	endpoint := newEtcd(t)
	ctx := within(t, patience)
	root, err := etcdlock.Dial(ctx, etcdlock.DialConfig{DialTimeout: patience, Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	_, err1 := root.UserAdd(ctx, "root", "r")
	_, err2 := root.UserGrantRole(ctx, "root", "root")
	_, err3 := root.UserAdd(ctx, "mount", "m")
	_, err4 := root.RoleAdd(ctx, "volume")
	_, err5 := root.RoleGrantPermission(ctx, "volume", "/locks/test/v/", clientv3.GetPrefixRangeEnd("/locks/test/v/"), clientv3.PermissionType(clientv3.PermReadWrite))
	_, err6 := root.RoleGrantPermission(ctx, "volume", "/lockfs/test/v/", clientv3.GetPrefixRangeEnd("/lockfs/test/v/"), clientv3.PermissionType(clientv3.PermReadWrite))
	_, err7 := root.UserGrantRole(ctx, "mount", "volume")
	_, err8 := root.AuthEnable(ctx)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, err8); err != nil {
		t.Fatal(err)
	}

	_, err = etcdlock.Dial(ctx, etcdlock.DialConfig{DialTimeout: patience, Endpoints: []string{endpoint}})
	if !errors.Is(err, rpctypes.ErrUserEmpty) {
		t.Errorf("without a name: %v", err)
	}
	_, err = etcdlock.Dial(ctx, etcdlock.DialConfig{DialTimeout: patience, Endpoints: []string{endpoint}, Username: "mount", Password: "wrong"})
	if !errors.Is(err, rpctypes.ErrAuthFailed) {
		t.Errorf("with a wrong password: %v", err)
	}
	client, err := etcdlock.Dial(ctx, etcdlock.DialConfig{DialTimeout: patience, Endpoints: []string{endpoint}, Username: "mount", Password: "m"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	allowed, err := newBackend(t, client, "v").OpenSession(ctx, lockmgr.SessionInfo{}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, wait := range waits {
		release(t, allowed, must(t, allowed, wait, file("f"))...)
	}
	if err := allowed.Close(ctx); err != nil {
		t.Error(err)
	}
	_, err = newBackend(t, client, "other").OpenSession(ctx, lockmgr.SessionInfo{}, time.Minute)
	if !errors.Is(err, lockmgr.ErrUnavailable) || !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("in a volume that is not ours: %v", err)
	}
}

func TestNew(t *testing.T) {
	client := dial(t)
	for _, cfg := range []etcdlock.Config{
		{Namespace: "n", Name: "v"},
		{Client: client, Name: "v"},
		{Client: client, Namespace: "n"},
		{Client: client, Namespace: "n/n", Name: "v"},
		{Client: client, Namespace: "n", Name: "v\x00"},
		{Client: client, Namespace: "n", Name: "v", RequestTimeout: -1},
	} {
		if _, err := etcdlock.New(cfg); err == nil {
			t.Errorf("New(%+v) takes it", cfg)
		}
	}
}

// The first mount's record stands, for the one whose first answer was lost too.
func TestVolumeRecord(t *testing.T) {
	client, kv := flawed(t)
	b, etcd := newVolume(t, client)
	kv.next(lostReply)
	for _, want := range []string{"first", "second"} {
		stored, err := b.VolumeRecord(t.Context(), []byte(want), nil)
		if err != nil || string(stored) != "first" {
			t.Errorf("VolumeRecord(%q): %q, %v", want, stored, err)
		}
	}
	if resp, err := etcd.Get(t.Context(), etcd.admin("volume")); err != nil || resp.Kvs[0].Version != 1 || resp.Kvs[0].Lease != 0 {
		t.Errorf("%v, %v", resp, err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	b = newBackend(t, dial(t), etcd.name)
	if _, err := b.VolumeRecord(over, nil, nil); !errors.Is(err, lockmgr.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
