package kubelease_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	corev1 "k8s.io/api/core/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
)

// cluster is the API server of this test binary: the one that $KUBECONFIG names,
// or one of our own, with an etcd of its own.
type cluster struct {
	conf *rest.Config // of an administrator
	dir  string
	port int
	etcd *exec.Cmd
	api  *exec.Cmd
}

// programs is where the binaries are that integration/kubelab/build.sh builds.
func programs() string {
	if dir := os.Getenv("KUBELAB_BIN"); dir != "" {
		return dir
	}
	return "/var/tmp/kubelab/bin"
}

func startCluster() (*cluster, error) {
	if file := os.Getenv("KUBECONFIG"); file != "" {
		conf, err := clientcmd.BuildConfigFromFlags("", file)
		if err != nil {
			return nil, err
		}
		return &cluster{conf: conf}, nil
	}
	if _, err := os.Stat(filepath.Join(programs(), "kube-apiserver")); err != nil {
		return nil, fmt.Errorf("no API server to test with: run integration/kubelab/build.sh, or set KUBECONFIG: %w", err)
	}
	dir, err := os.MkdirTemp("", "kubelease")
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir}
	if err := c.start(); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

func (c *cluster) start() error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	client, peer := "http://127.0.0.1:"+strconv.Itoa(ports[0]), "http://127.0.0.1:"+strconv.Itoa(ports[1])
	c.port = ports[2]
	c.etcd, err = c.run("etcd", "--data-dir", filepath.Join(c.dir, "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--unsafe-no-fsync")
	if err != nil {
		return err
	}
	if err := c.credentials(); err != nil {
		return err
	}
	c.conf = &rest.Config{
		Host: "https://127.0.0.1:" + strconv.Itoa(c.port), BearerToken: adminToken,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 1000, Burst: 1000,
	}
	if err := os.WriteFile(filepath.Join(c.dir, "etcd-url"), []byte(client), 0o600); err != nil {
		return err
	}
	return c.startAPI()
}

// adminToken is the administrator's.
const adminToken = "admin"

// credentials are a key for service accounts, which the API server insists on, and
// the administrator's token.
func (c *cluster) credentials() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	return errors.Join(os.WriteFile(filepath.Join(c.dir, "sa.key"), text, 0o600),
		os.WriteFile(filepath.Join(c.dir, "tokens"), []byte(adminToken+",admin,admin,system:masters\n"), 0o600))
}

// startAPI starts the API server and returns when it is ready.
func (c *cluster) startAPI() error {
	etcd, err := os.ReadFile(filepath.Join(c.dir, "etcd-url"))
	if err != nil {
		return err
	}
	key := filepath.Join(c.dir, "sa.key")
	c.api, err = c.run("kube-apiserver", "--etcd-servers", string(etcd), "--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(c.port),
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", "--cert-dir", filepath.Join(c.dir, "certs"),
		"--token-auth-file", filepath.Join(c.dir, "tokens"), "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file", key, "--service-account-signing-key-file", key)
	if err != nil {
		return err
	}
	core, err := coreclient.NewForConfig(c.conf)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(3 * patience)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := core.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		if err == nil {
			_, err = core.Namespaces().Get(ctx, "default", metav1.GetOptions{})
		}
		cancel()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) || c.api.ProcessState != nil {
			log, _ := os.ReadFile(filepath.Join(c.dir, "kube-apiserver.log"))
			return fmt.Errorf("the API server is not ready: %w\n%s", err, log[max(0, len(log)-4000):])
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// killAPI ends the API server as a crash does.
func (c *cluster) killAPI() {
	if c.api != nil {
		_ = c.api.Process.Kill()
		_ = c.api.Wait()
		c.api = nil
	}
}

func (c *cluster) stop() {
	c.killAPI()
	if c.etcd != nil {
		_ = c.etcd.Process.Kill()
		_ = c.etcd.Wait()
	}
	if c.dir != "" {
		os.RemoveAll(c.dir)
	}
}

func (c *cluster) run(program string, args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(filepath.Join(c.dir, program+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(programs(), program), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, cmd.Start()
}

func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// newSpace makes a namespace for Leases and returns its name.
func (c *cluster) newSpace() (string, error) {
	core, err := coreclient.NewForConfig(c.conf)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ns, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "lockfs-test-"}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return ns.Name, nil
}

func (c *cluster) dropSpace(name string) {
	core, err := coreclient.NewForConfig(c.conf)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = core.Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
}
