package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/internal/serve"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

// kubeFlags say how to reach the Kubernetes API server.
type kubeFlags struct {
	kube kubelease.DialConfig
}

func (k *kubeFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&k.kube.Kubeconfig, "kubeconfig", "", "`file` that says where the API server is (default: the cluster that lockfs runs in, else $KUBECONFIG)")
	fs.Float64Var(&k.kube.QPS, "kube-qps", kubelease.DefaultQPS, "maximum `requests` per second to the API server for the locks of a volume. A lock takes two")
	fs.IntVar(&k.kube.Burst, "kube-burst", kubelease.DefaultBurst, "maximum burst of `requests` above --kube-qps")
}

func (k *kubeFlags) check() error {
	if k.kube.QPS <= 0 || k.kube.Burst <= 0 {
		return usage(fmt.Errorf("--kube-qps %v, --kube-burst %d: want positive numbers", k.kube.QPS, k.kube.Burst))
	}
	return nil
}

// checkUnused refuses flags that are not needed without Leases.
func (k *kubeFlags) checkUnused(podNames bool) error {
	unused := ""
	switch {
	case k.kube.Kubeconfig != "" && !podNames:
		unused = "kubeconfig"
	case k.kube.QPS != kubelease.DefaultQPS:
		unused = "kube-qps"
	case k.kube.Burst != kubelease.DefaultBurst:
		unused = "kube-burst"
	default:
		return nil
	}
	return usage(fmt.Errorf("--%s is for --backend kubernetes: name that backend, or drop it", unused))
}

// dialLeases returns the lock service that keeps a volume's locks as Leases in a namespace.
func (k *kubeFlags) dialLeases(namespace, name, leaseNamespace string, log *slog.Logger) (serve.Backend, func(), error) {
	dial := k.kube
	dial.UserAgent = "lockfs/" + buildVersion()
	client, err := kubelease.Dial(dial)
	if err != nil {
		return nil, nil, usage(err)
	}
	b, err := kubelease.New(kubelease.Config{Client: client, Namespace: namespace, Name: name, LeaseNamespace: leaseNamespace, Logger: log})
	if err != nil {
		return nil, nil, err
	}
	return b, b.Close, nil
}

// backendFlags say which kind of lock service a volume has.
type backendFlags struct {
	kubeFlags
	backend        choiceFlag[string]
	leaseNamespace string
}

func (b *backendFlags) register(fs *pflag.FlagSet) {
	b.backend = choiceFlag[string]{config.BackendEtcd, []string{config.BackendEtcd, config.BackendKubernetes}}
	fs.Var(&b.backend, "backend", "lock `service`: "+b.backend.list()+". kubernetes keeps the locks in Lease objects")
	fs.StringVar(&b.leaseNamespace, "lease-namespace", "", "Kubernetes `namespace` of the Lease objects (default: that of --namespace)")
	b.kubeFlags.register(fs)
}

func (b *backendFlags) inKubernetes() bool { return b.backend.value == config.BackendKubernetes }

// remote reports whether the flags name a lock service other than the embedded etcd.
func (v *volumeFlags) remote() bool { return v.inKubernetes() || len(v.dial.Endpoints) > 0 }

// checkBackend refuses flags that belong to the other kind of lock service. podNames: the command
// asks an API server whatever the lock service is.
func (v *volumeFlags) checkBackend(podNames bool) error {
	switch {
	case v.inKubernetes() && len(v.dial.Endpoints) > 0:
		return usage(errors.New("--backend kubernetes and --endpoints exclude each other: drop one"))
	case !v.inKubernetes() && v.leaseNamespace != "":
		return usage(errors.New("--lease-namespace: only --backend kubernetes has Leases: drop it, or name that backend"))
	}
	for _, e := range v.dial.Endpoints {
		if err := config.CheckEndpoint(e); err != nil {
			return usage(fmt.Errorf("--endpoints: %w", err))
		}
	}
	if err := v.checkCredentials(); err != nil {
		return err
	}
	if err := v.kubeFlags.check(); err != nil {
		return err
	}
	if v.inKubernetes() || v.config != "" {
		return nil
	}
	return v.kubeFlags.checkUnused(podNames)
}

// checkCredentials refuses unused or incomplete credentials.
func (v *volumeFlags) checkCredentials() error {
	d := &v.dial
	given := func(value string) bool { return value != "" }
	flags := []struct{ name, value string }{
		{"cacert", d.CAFile}, {"cert", d.CertFile}, {"key", d.KeyFile},
		{"user", d.Username}, {"password", d.Password}, {"password-file", d.PasswordFile},
	}
	for _, f := range flags {
		if given(f.value) && len(d.Endpoints) == 0 {
			return usage(fmt.Errorf("--%s is for an etcd at --endpoints: give --endpoints, or drop it", f.name))
		}
	}
	switch {
	case given(d.CertFile) != given(d.KeyFile):
		return usage(errors.New("--cert and --key belong together: give both, or none"))
	case given(d.Password) && given(d.PasswordFile):
		return usage(errors.New("--password and --password-file exclude each other: drop one"))
	case given(d.Username) != (given(d.Password) || given(d.PasswordFile)):
		return usage(errors.New("--user and its password belong together: give --user, and --password or --password-file"))
	}
	for _, f := range flags {
		if f.name == "user" || f.name == "password" || !given(f.value) {
			continue
		}
		if _, err := os.Stat(f.value); err != nil {
			return fmt.Errorf("--%s: %w", f.name, err) // no usage error: a Secret may come later
		}
	}
	return nil
}

func (b *backendFlags) completeBackend(cmd *cobra.Command) {
	complete(cmd, "backend", b.backend.words())
}
