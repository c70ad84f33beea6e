package kubelease_test

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/internal/kubetest"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

const patience = lockmgrtest.Patience

// For short.
var (
	within     = lockmgrtest.Within
	eventually = lockmgrtest.Eventually
	openFor    = lockmgrtest.Open
	request    = lockmgrtest.Request
	must       = lockmgrtest.Must
	release    = lockmgrtest.Release
	start      = lockmgrtest.Start
	await      = lockmgrtest.Await
	file       = lockmgrtest.File
	tree       = lockmgrtest.Tree
	serviceOf  = lockmgrtest.ServiceOf
	found      = lockmgrtest.FoundService
	mustRecord = lockmgrtest.MustRecord
	openErr    = lockmgrtest.OpenErr
)

func open(t *testing.T, b lockmgr.Backend) lockmgr.Session {
	t.Helper()
	return lockmgrtest.Open(t, b, lockmgrtest.TTL)
}

var (
	kube  *kubetest.Server
	space string // the namespace of all tests' Leases
)

func TestMain(m *testing.M) { os.Exit(serve(m)) }

func serve(m *testing.M) int {
	var err error
	if kube, err = kubetest.Start(); err == nil {
		defer kube.Stop()
		space, err = prepare()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer kube.DropNamespace(space)
	return m.Run()
}

// prepare makes the namespace, and lets mounts use Leases in it.
func prepare() (string, error) {
	role, err := deployedRole()
	if err != nil {
		return "", err
	}
	space, err := kube.NewNamespace()
	if err != nil {
		return "", err
	}
	return space, permit(mountUser, space, role.Rules)
}

// volumes makes each test's volume its own.
var volumes atomic.Int64

func newName() string { return fmt.Sprintf("v%d", volumes.Add(1)) }

// raw are the Leases as the API server has them.
func raw(t *testing.T) coordinationclient.LeaseInterface {
	t.Helper()
	client, err := coordinationclient.NewForConfig(kube.Config)
	if err != nil {
		t.Fatal(err)
	}
	return client.Leases(space)
}

// newBackend returns a backend of the volume with a client of its own, as each
// mount has.
func newBackend(t *testing.T, name string, change ...func(*kubelease.Config)) *kubelease.Backend {
	t.Helper()
	return newBackendAt(t, as(mountUser), name, change...)
}

// newBackendAt returns a backend whose requests have the time that a slow machine takes.
func newBackendAt(t *testing.T, conf *rest.Config, name string, change ...func(*kubelease.Config)) *kubelease.Backend {
	t.Helper()
	client, err := kubelease.NewClient(conf)
	if err != nil {
		t.Fatal(err)
	}
	cfg := kubelease.Config{
		Client: client, Namespace: "test", Name: name, LeaseNamespace: space, RequestTimeout: patience,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, c := range change {
		c(&cfg)
	}
	b, err := kubelease.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// pace is the clock of some mounts. It stands still unless it is told to go on: so a
// session dies when the test says so, and not because the machine is slow.
type pace struct{ now atomic.Int64 }

func (p *pace) Now() boottime.Instant { return boottime.Instant(p.now.Load()) }

func (p *pace) pass(d time.Duration) { p.now.Add(int64(d)) }

// passUntil has time pass, not faster than it does, until something comes.
func passUntil[T any](t *testing.T, p *pace, step time.Duration, what string, comes <-chan T) T {
	t.Helper()
	for over := within(t, patience); ; p.pass(step) {
		select {
		case v := <-comes:
			return v
		case <-time.After(step):
		case <-over.Done():
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// by makes p a backend's clock.
func (p *pace) by(c *kubelease.Config) { c.Clock = p }

// renew renews s again and again until stop is called or the test ends, and has interval
// pass after each time.
func (p *pace) renew(t *testing.T, s lockmgr.Session, interval time.Duration) (stop func()) {
	return p.renewOne(t, 1, s, interval)
}

// renewOne is renew for one of several sessions, which have time pass together.
func (p *pace) renewOne(t *testing.T, of int, s lockmgr.Session, interval time.Duration) (stop func()) {
	return renewing(t, s, interval, func() { p.pass(interval / time.Duration(of)) })
}

// expire deletes a session's Leases, as mounts do that miss its renewals.
func expire(t *testing.T, s lockmgr.Session) {
	t.Helper()
	leases := raw(t)
	list, err := leases.List(t.Context(), metav1.ListOptions{LabelSelector: "lockfs.io/kind=session,lockfs.io/session=" + s.ID()})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d sessions of id %s: %v", len(list.Items), s.ID(), err)
	}
	session := list.Items[0].Name
	for _, name := range []string{strings.Replace(session, "-session-", "-pulse-", 1), session} {
		// A keeper may have ended the session first.
		if err := leases.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
}
