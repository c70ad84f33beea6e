package lab

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
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// PKI is a CA and one certificate of it, good for server and client.
type PKI struct {
	CA, Cert, Key string
	network       string // of the server
}

func NewPKI(t *testing.T) PKI {
	t.Helper()
	dir, network := t.TempDir(), ownNetwork(t)
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
		IPAddresses: []net.IP{net.ParseIP(network + "1")}, KeyUsage: x509.KeyUsageDigitalSignature,
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
	return PKI{
		CA:   write("ca.pem", "CERTIFICATE", caDER),
		Cert: write("node.pem", "CERTIFICATE", der),
		Key:  write("node-key.pem", "EC PRIVATE KEY", keyDER),

		network: network,
	}
}

// NewSecureEtcd serves etcd on loopback with mutual TLS and authentication, and returns its URL.
func NewSecureEtcd(t *testing.T, p PKI) string {
	t.Helper()
	client := url.URL{Scheme: "https", Host: p.network + "1:2379"}
	cfg := embed.NewConfig()
	cfg.Dir = shortDir(t, "/dev/shm") // where fsync costs nothing
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	peer := url.URL{Scheme: "unix", Host: "secure-etcd"}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, []url.URL{peer}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = p.CA, p.Cert, p.Key
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
	case <-time.After(CallTimeout):
		t.Fatal("etcd does not start")
	}

	cert, err := tls.LoadX509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	caPEM, err := os.ReadFile(p.CA)
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
		func() error { return GrantPrefix(c, "team", "/locks/team/") },
		func() error { return GrantPrefix(c, "team", "/lockfs/team/") },
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

func GrantPrefix(c *clientv3.Client, role, prefix string) error {
	ctx := c.Ctx()
	_, err := c.RoleGrantPermission(ctx, role, prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
	return err
}
