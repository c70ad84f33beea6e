package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// pki is a CA and one certificate of it, good for server and client.
type pki struct{ ca, cert, key string }

func newPKI(t *testing.T) pki {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	newKey := func() *ecdsa.PrivateKey {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	caKey, key := newKey(), newKey()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "node"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pki{
		ca:   write("ca.pem", "CERTIFICATE", caDER),
		cert: write("node.pem", "CERTIFICATE", der),
		key:  write("node-key.pem", "EC PRIVATE KEY", keyDER),
	}
}

// newSecureEtcd serves etcd on loopback with TLS both ways and authentication
// on, and returns its URL.
func newSecureEtcd(t *testing.T, p pki) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client := url.URL{Scheme: "https", Host: l.Addr().String()}
	l.Close()
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	peer := url.URL{Scheme: "unix", Host: "secure-etcd"}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, []url.URL{peer}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = p.ca, p.cert, p.key
	cfg.ClientTLSInfo.ClientCertAuth = true
	cfg.BcryptCost = 4 // under the race detector a login takes a second at the default
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(callTimeout):
		t.Fatal("etcd does not start")
	}

	cert, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		t.Fatal(err)
	}
	caPEM, err := os.ReadFile(p.ca)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(caPEM)
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{client.String()}, Logger: zap.NewNop(),
		TLS: &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := t.Context()
	steps := []func() error{
		func() error { _, err := c.UserAdd(ctx, "root", "toor"); return err },
		func() error { _, err := c.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := c.UserAdd(ctx, "team", "secret"); return err },
		func() error { _, err := c.RoleAdd(ctx, "team"); return err },
		// What one namespace's mounts need.
		func() error { return grantPrefix(c, "team", "/locks/team/") },
		func() error { return grantPrefix(c, "team", "/lockfs/team/") },
		func() error { _, err := c.UserGrantRole(ctx, "team", "team"); return err },
		func() error { _, err := c.AuthEnable(ctx); return err },
	}
	for i, step := range steps {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	return client.String()
}

func grantPrefix(c *clientv3.Client, role, prefix string) error {
	ctx := c.Ctx()
	_, err := c.RoleGrantPermission(ctx, role, prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
	return err
}

// An etcd with TLS and users: a mount that has what it takes locks, and one that
// has not is told what is missing.
func TestSecureEtcd(t *testing.T) {
	p := newPKI(t)
	endpoint := newSecureEtcd(t, p)
	v := newVolume(t, "--endpoints", endpoint, "--cacert", p.ca, "--cert", p.cert, "--key", p.key, "--namespace", "team", "--ttl", "15s")
	v.env = append(v.env, "LOCKFS_USER=team", "LOCKFS_PASSWORD=secret")
	a, b := v.mount("a"), v.mount("b")
	holder, other := newAgent(t), newAgent(t)
	fd := holder.open(a.path("f"), wronly|create)
	other.fails(call{Op: "open", Path: b.path("f"), Flags: wronly | nonblock}, unix.EAGAIN)
	status, stdout, stderr := outcome(t, v.command("ls", "--endpoints", endpoint, "--cacert", p.ca, "--cert", p.cert, "--key", p.key, a.dir))
	if status != 0 || !strings.Contains(stdout, " held ") {
		t.Errorf("ls: %d %q %q", status, stdout, stderr)
	}
	holder.must(call{Op: "close", FD: fd})

	mnt := filepath.Join(v.dir, "c")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	tlsFlags := []string{"--cacert", p.ca, "--cert", p.cert, "--key", p.key}
	for name, c := range map[string]struct {
		env   string
		flags []string
		says  string
	}{
		"wrong password":    {"LOCKFS_PASSWORD=wrong", tlsFlags, "authentication failed"},
		"no certificate":    {"", []string{"--cacert", p.ca}, endpoint}, // TLS 1.3: the server hangs up, most often without a word
		"unknown CA":        {"", nil, "certificate"},
		"another namespace": {"", append([]string{"--namespace", "others"}, tlsFlags...), "permission denied"},
	} {
		args := append([]string{"mount", "--namespace", "team", "--endpoints", endpoint}, c.flags...)
		source := v.source
		if name == "another namespace" {
			source = t.TempDir()
		}
		cmd := v.command(append(args, source, mnt)...)
		cmd.Env = append(cmd.Env, c.env)
		status, _, stderr := outcome(t, cmd)
		if status != 1 || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit status %d, %q; want 1 and %q", name, status, stderr, c.says)
		}
	}
}
