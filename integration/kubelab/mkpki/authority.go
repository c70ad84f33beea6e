package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority is the cluster's CA, which writes all it issues to dir.
type authority struct {
	dir, server string
	cert        *x509.Certificate
	key         *ecdsa.PrivateKey
}

// identity is what a certificate names: a server if it has addresses, else a
// client.
type identity struct {
	cn   string
	orgs []string
	dns  []string
	ips  []net.IP
}

func newAuthority(dir, server string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := template(identity{cn: "kubelab-ca"})
	template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, server: server, key: key}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return a, a.write("ca.crt", "CERTIFICATE", der)
}

func template(id identity) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: id.cn, Organization: id.orgs},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		DNSNames: id.dns, IPAddresses: id.ips, BasicConstraintsValid: true,
	}
}

// issue writes NAME.crt and NAME.key.
func (a *authority) issue(name string, id identity) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := template(id)
	t.KeyUsage, t.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if id.ips != nil {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return err
	}
	if err := a.write(name+".crt", "CERTIFICATE", der); err != nil {
		return err
	}
	return a.writeKey(name+".key", key)
}

// kubeconfig writes NAME.kubeconfig for a client of the apiserver, and the
// certificate as files too.
func (a *authority) kubeconfig(name string, id identity) error {
	if err := a.issue(name, id); err != nil {
		return err
	}
	var data [3]string
	for i, file := range []string{"ca.crt", name + ".crt", name + ".key"} {
		b, err := os.ReadFile(filepath.Join(a.dir, file))
		if err != nil {
			return err
		}
		data[i] = base64.StdEncoding.EncodeToString(b)
	}
	return os.WriteFile(filepath.Join(a.dir, name+".kubeconfig"), fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: kubelab
  cluster: {server: %q, certificate-authority-data: %s}
users:
- name: user
  user: {client-certificate-data: %s, client-key-data: %s}
contexts:
- name: kubelab
  context: {cluster: kubelab, user: user}
current-context: kubelab
`, a.server, data[0], data[1], data[2]), 0o600)
}

// serviceAccountKey writes the pair that signs service accounts' tokens.
func (a *authority) serviceAccountKey(name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	pub, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := a.write(name+".pub", "PUBLIC KEY", pub); err != nil {
		return err
	}
	return a.writeKey(name+".key", key)
}

func (a *authority) writeKey(file string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return a.write(file, "EC PRIVATE KEY", der)
}

func (a *authority) write(file, kind string, der []byte) error {
	return os.WriteFile(filepath.Join(a.dir, file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
