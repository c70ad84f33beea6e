package lab

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// StateFile finds the embedded etcd of the volume.
func (v *Volume) StateFile(name string) string {
	v.T.Helper()
	found, err := filepath.Glob(filepath.Join(v.State, "embedded", "*", name))
	if err != nil || len(found) != 1 {
		v.T.Fatalf("%s of the embedded etcd: %v, %v", name, found, err)
	}
	return found[0]
}

// Etcd is what an operator has in etcdctl.
func (v *Volume) Etcd() *clientv3.Client {
	v.T.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{v.endpoint()}})
	if err != nil {
		v.T.Fatal(err)
	}
	v.T.Cleanup(func() { c.Close() })
	return c
}

// EtcdPID is the process that serves the embedded etcd.
func (v *Volume) EtcdPID() int {
	v.T.Helper()
	b, err := os.ReadFile(v.StateFile("lock"))
	if err != nil {
		v.T.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		v.T.Fatal(err)
	}
	return pid
}

// Revoke ends the session of the one holder, as 'etcdctl lease revoke' does.
func (v *Volume) Revoke() {
	v.T.Helper()
	es := v.LS()
	if len(es) != 1 {
		v.T.Fatalf("one holder expected, got %v", es)
	}
	v.RevokeSession(es[0].Session)
}

func (v *Volume) RevokeSession(session string) {
	v.T.Helper()
	id, err := strconv.ParseInt(session, 16, 64)
	if err != nil {
		v.T.Fatal(err)
	}
	if _, err := v.Etcd().Revoke(context.Background(), clientv3.LeaseID(id)); err != nil {
		v.T.Fatal(err)
	}
}

// Answers asks until a member of a busy etcd answers. What had no answer may have been done.
func Answers(t *testing.T, what string, ask func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), CallTimeout)
	defer cancel()
	Eventually(t, what, func() bool {
		err := ask(ctx)
		if err != nil {
			t.Logf("%s: %v", what, err)
		}
		return err == nil
	})
}
