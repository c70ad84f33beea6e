package kubelease_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

func TestConfig(t *testing.T) {
	client, err := kubelease.NewClient(kube.Config)
	if err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]kubelease.Config{
		"no client":        {Namespace: "n", Name: "v"},
		"no name":          {Client: client, Namespace: "n"},
		"no namespace":     {Client: client, Name: "v", LeaseNamespace: "n"},
		"no DNS label":     {Client: client, Namespace: "Team A", Name: "v"},
		"negative timeout": {Client: client, Namespace: "n", Name: "v", RequestTimeout: -1},
	} {
		if b, err := kubelease.New(cfg); err == nil {
			b.Close()
			t.Errorf("%s is taken", name)
		}
	}
}

// Where the API server is: the file that is named, or else those of $KUBECONFIG.
func TestDial(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: t}}]\n"
	if err := os.WriteFile(good, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	for _, test := range []struct{ name, flag, env, want string }{
		{"a file", good, "", ""},
		{"a file before the environment", good, missing, ""},
		{"the environment", "", good, ""},
		{"a list", "", missing + ":" + good, ""},
		{"a file that is not there", missing, good, "no such file"},
		{"nothing", "", "", "--kubeconfig"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", test.env)
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			_, err := kubelease.Dial(kubelease.DialConfig{Kubeconfig: test.flag})
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("Dial: %v, want %q", err, test.want)
			}
		})
	}
	if _, err := kubelease.Dial(kubelease.DialConfig{Kubeconfig: good, QPS: -1}); err == nil {
		t.Error("a negative QPS is taken")
	}
}
