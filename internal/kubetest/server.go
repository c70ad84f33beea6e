// Package kubetest gives tests a Kubernetes API server: the one that $KUBECONFIG
// names, or one of their own, which is the real program with an etcd of its own and
// nothing else.
package kubetest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Server is an API server.
type Server struct {
	// Config is how an administrator reaches it.
	Config *rest.Config

	// Store is the URL of the etcd, if the API server is the test's own.
	Store string

	dir  string // of the test's own server
	host string // loopback address of its own: nobody takes a port while its program is down
	port int
	peer string // URL
	etcd *program
	api  *program
}

type program struct {
	*exec.Cmd
	name  string
	ended chan struct{} // closed when it has ended
}

// errEnded is of a program that ended by itself.
var errEnded = errors.New("it has ended")

// patience is how long what must happen may take.
const patience = time.Minute

// starting is how long the API server may take to begin: on a loaded machine it takes minutes.
const starting = 5 * patience

// programs is where the binaries are that integration/kubelab/build.sh builds.
func programs() string {
	if dir := os.Getenv("KUBELAB_BIN"); dir != "" {
		return dir
	}
	return "/var/tmp/kubelab/bin"
}

// Start returns an API server that is ready. If it is the test's own, stop it in the end.
func Start() (*Server, error) {
	if file := os.Getenv("KUBECONFIG"); file != "" {
		conf, err := clientcmd.BuildConfigFromFlags("", file)
		if err != nil {
			return nil, err
		}
		return &Server{Config: conf}, nil
	}
	if _, err := os.Stat(filepath.Join(programs(), "kube-apiserver")); err != nil {
		return nil, fmt.Errorf("no API server to test with: run 'make apiserver', or set KUBECONFIG: %w", err)
	}
	dir, err := os.MkdirTemp("", "kubetest")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	err = s.start()
	for tries := 1; errors.Is(err, errEnded) && tries < 3; tries++ { // another may have taken a port
		s.Kill()
		s.KillStore()
		if err = os.RemoveAll(s.StoreDir()); err == nil {
			err = s.start()
		}
	}
	if err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

func (s *Server) start() error {
	s.host = fmt.Sprintf("127.%d.%d.1", 1+mathrand.IntN(250), mathrand.IntN(250))
	ports, err := freePorts(s.host, 3)
	if err != nil {
		return err
	}
	s.Store, s.peer = "http://"+s.host+":"+strconv.Itoa(ports[0]), "http://"+s.host+":"+strconv.Itoa(ports[1])
	s.port = ports[2]
	if err := s.StartStore(); err != nil {
		return err
	}
	if err := s.credentials(); err != nil {
		return err
	}
	s.Config = &rest.Config{
		Host: "https://" + s.host + ":" + strconv.Itoa(s.port), BearerToken: adminToken,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 1000, Burst: 1000,
	}
	return s.startAPI()
}

// StartStore starts the etcd, after KillStore.
func (s *Server) StartStore() (err error) {
	s.etcd, err = s.run("etcd", "--data-dir", s.StoreDir(), "--listen-client-urls", s.Store, "--advertise-client-urls", s.Store,
		"--listen-peer-urls", s.peer, "--initial-advertise-peer-urls", s.peer, "--initial-cluster", "default="+s.peer, "--unsafe-no-fsync")
	return err
}

// StoreDir is where the etcd has its data.
func (s *Server) StoreDir() string { return filepath.Join(s.dir, "etcd") }

// KillStore ends the etcd as a crash does.
func (s *Server) KillStore() { end(&s.etcd) }

func end(p **program) {
	if *p != nil {
		_ = (*p).Process.Kill()
		<-(*p).ended
		*p = nil
	}
}

// adminToken is the administrator's.
const adminToken = "admin"

// credentials are a key for service accounts, which the API server insists on, and
// the administrator's token.
func (s *Server) credentials() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	return errors.Join(os.WriteFile(filepath.Join(s.dir, "sa.key"), text, 0o600),
		os.WriteFile(filepath.Join(s.dir, "tokens"), []byte(adminToken+",admin,admin,system:masters\n"), 0o600))
}

// Kubeconfig returns the name of a file for an administrator's programs.
func (s *Server) Kubeconfig() (string, error) {
	if !s.Own() {
		return os.Getenv("KUBECONFIG"), nil
	}
	const name = "test"
	conf := clientcmdapi.NewConfig()
	conf.Clusters[name] = &clientcmdapi.Cluster{Server: s.Config.Host, InsecureSkipTLSVerify: true}
	conf.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: adminToken}
	conf.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	conf.CurrentContext = name
	file := filepath.Join(s.dir, "kubeconfig")
	return file, clientcmd.WriteToFile(*conf, file)
}

// Own reports whether the API server is the test's own, to kill for example.
func (s *Server) Own() bool { return s.dir != "" }

// Restart starts the API server, after Kill, and returns when it is ready. One that meets a machine too slow for what it
// checks as it starts ends by itself, and is started again.
func (s *Server) Restart() error {
	err := s.startAPI()
	for tries := 1; errors.Is(err, errEnded) && tries < 3; tries++ {
		err = s.startAPI()
	}
	return err
}

func (s *Server) startAPI() error {
	var err error
	key := filepath.Join(s.dir, "sa.key")
	s.api, err = s.run("kube-apiserver", "--etcd-servers", s.Store, "--bind-address="+s.host, "--secure-port="+strconv.Itoa(s.port),
		"--advertise-address="+s.host, "--endpoint-reconciler-type=none", "--cert-dir", filepath.Join(s.dir, "certs"),
		"--token-auth-file", filepath.Join(s.dir, "tokens"), "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file", key, "--service-account-signing-key-file", key)
	if err != nil {
		return err
	}
	return s.Ready()
}

// Beside returns another API server on the same etcd. Stop it before the first one.
func (s *Server) Beside() (*Server, error) {
	ports, err := freePorts(s.host, 1)
	if err != nil {
		return nil, err
	}
	other := &Server{Config: rest.CopyConfig(s.Config), Store: s.Store, dir: s.dir, host: s.host, port: ports[0]}
	other.Config.Host = "https://" + s.host + ":" + strconv.Itoa(other.port)
	return other, other.Restart()
}

// Ready returns when the API server serves.
func (s *Server) Ready() error {
	core, err := coreclient.NewForConfig(s.Config)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(starting)
	for {
		for _, p := range []*program{s.etcd, s.api} {
			if err := p.err(s.dir); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := core.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		if err == nil {
			_, err = core.Namespaces().Get(ctx, "default", metav1.GetOptions{})
		}
		cancel()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the API server is not ready: %w\n%s", err, s.api.log(s.dir))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Kill ends the API server as a crash does.
func (s *Server) Kill() { end(&s.api) }

// Signal sends the API server a signal.
func (s *Server) Signal(sig os.Signal) error { return s.api.Process.Signal(sig) }

// Stop ends the test's own API server.
func (s *Server) Stop() {
	s.Kill()
	s.KillStore()
	if s.dir != "" {
		os.RemoveAll(s.dir)
	}
}

// err is errEnded if the program, which may be nil, has ended.
func (p *program) err(dir string) error {
	if p == nil {
		return nil
	}
	select {
	case <-p.ended:
		return fmt.Errorf("%s: %w: %v\n%s", p.name, errEnded, p.ProcessState, p.log(dir))
	default:
		return nil
	}
}

// log returns the end of what the program, which may be nil, has printed.
func (p *program) log(dir string) []byte {
	if p == nil {
		return nil
	}
	text, _ := os.ReadFile(logFile(dir, p.name))
	return text[max(0, len(text)-4000):]
}

func logFile(dir, name string) string { return filepath.Join(dir, name+".log") }

func (s *Server) run(name string, args ...string) (*program, error) {
	log, err := os.OpenFile(logFile(s.dir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	path, err := exec.LookPath(filepath.Join(programs(), name))
	if err != nil {
		return nil, err
	}
	// It would have a machine of its own: tests beside it must not starve it.
	cmd := exec.Command("nice", append([]string{"-n", "-10", path}, args...)...)
	cmd.Env = append(os.Environ(), "GOGC=400") // memory for a quarter of its CPU time
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &program{Cmd: cmd, name: name, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

func freePorts(host string, n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", host+":0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// NewNamespace makes a namespace and returns its name.
func (s *Server) NewNamespace() (string, error) {
	core, err := coreclient.NewForConfig(s.Config)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ns, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "lockfs-test-"}}, metav1.CreateOptions{})
	if err != nil {
		return "", errors.Join(err, s.etcd.err(s.dir), s.api.err(s.dir))
	}
	return ns.Name, nil
}

// DropNamespace deletes a namespace.
func (s *Server) DropNamespace(name string) {
	core, err := coreclient.NewForConfig(s.Config)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = core.Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
}
