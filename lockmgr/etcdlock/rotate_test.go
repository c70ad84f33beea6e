package etcdlock_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// replace gives a file new content at once, as a mounted Secret does.
func replace(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := errors.Join(os.WriteFile(file+".new", content, 0o600), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// anyCA is one that has signed nothing.
func anyCA(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// handshakeErrors receives from a server's log.
type handshakeErrors chan struct{}

func (h handshakeErrors) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("handshake error")) {
		select {
		case h <- struct{}{}:
		default:
		}
	}
	return len(line), nil
}

// A CA that is replaced is what the next connection goes by.
func TestRotatedCA(t *testing.T) {
	refused := make(handshakeErrors, 1)
	server := webServer(t, refused)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	replace(t, ca, certificatePEM(anyCA(t)))
	result := make(chan error, 1)
	go func() {
		_, err := etcdlock.Dial(t.Context(), etcdlock.DialConfig{Endpoints: []string{server.URL}, CAFile: ca, DialTimeout: time.Minute})
		result <- err
	}()
	select {
	case <-refused:
	case err := <-result:
		t.Fatal(err)
	}
	replace(t, ca, certificatePEM(server.Certificate().Raw))
	if err := <-result; err == nil || !strings.Contains(err.Error(), "404") { // verified, but no etcd
		t.Errorf("with the right CA: %v", err)
	}
}

// A password that is replaced is used when etcd asks for one again, which it
// does once it has changed there.
func TestRotatedPassword(t *testing.T) {
	t.Parallel()
	endpoint := newEtcd(t)
	ctx := within(t, patience)
	password := filepath.Join(t.TempDir(), "password")
	replace(t, password, []byte("one\n"))
	setup, err := etcdlock.Dial(ctx, etcdlock.DialConfig{DialTimeout: patience, Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer setup.Close()
	_, err1 := setup.UserAdd(ctx, "root", "one")
	_, err2 := setup.UserGrantRole(ctx, "root", "root")
	_, err3 := setup.AuthEnable(ctx)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	_, err = etcdlock.Dial(ctx, etcdlock.DialConfig{DialTimeout: patience, Endpoints: []string{endpoint}, Username: "root", PasswordFile: password + ".missing"})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
	client, err := etcdlock.Dial(ctx, etcdlock.DialConfig{DialTimeout: patience, Endpoints: []string{endpoint}, Username: "root", PasswordFile: password})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.UserChangePassword(ctx, "root", "two"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Get(ctx, "k"); !errors.Is(err, rpctypes.ErrAuthFailed) && !errors.Is(err, rpctypes.ErrInvalidAuthToken) {
		t.Errorf("with the old password: %v", err)
	}
	replace(t, password, []byte("two\n"))
	if _, err := client.Get(ctx, "k"); err != nil {
		t.Errorf("with the new one: %v", err)
	}
}
