package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/internal/serve"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// configFlags name the file of 'lockfs serve'.
type configFlags struct {
	config, credentials string
}

func (c *configFlags) register(f *pflag.FlagSet, what string) {
	f.StringVar(&c.config, "config", "", what)
	f.StringVar(&c.credentials, "credentials-dir", "", "`directory` that has a directory for each name under credentials in --config")
}

// registerListed registers them for commands that need one volume of the file.
func (c *configFlags) registerListed(f *pflag.FlagSet) {
	c.register(f, "`file` of this node's 'lockfs serve'. It says where the locks of its volumes are")
}

func (c *configFlags) listed(namespace, name string) (config.Volume, error) {
	file, err := config.NewReader(c.config).Load()
	if err != nil {
		return config.Volume{}, usage(err)
	}
	i := slices.IndexFunc(file.Volumes, func(v config.Volume) bool { return v.Namespace == namespace && v.Name == name })
	if i < 0 {
		return config.Volume{}, usage(fmt.Errorf("%s does not list the volume %s/%s", c.config, namespace, name))
	}
	return file.Volumes[i], nil
}

func (c *configFlags) connect(ctx context.Context, kube *kubeFlags, v config.Volume, log *slog.Logger) (serve.Backend, func(), error) {
	if v.Backend == config.BackendKubernetes {
		return kube.dialLeases(v.Namespace, v.Name, v.LeaseNamespace, log)
	}
	dial, err := c.credentialsOf(v)
	if err != nil {
		return nil, nil, err
	}
	dial.Endpoints, dial.Logger = v.Endpoints, log
	return (&volumeFlags{namespace: v.Namespace, name: v.Name}).dialBackend(ctx, dial, false)
}

// checkCredentialsDir fails if the volume has credentials, and nothing says where.
func (c *configFlags) checkCredentialsDir(v config.Volume) error {
	if v.Backend == config.BackendEtcd && v.Credentials != "" && c.credentials == "" {
		return usage(fmt.Errorf("--credentials-dir is required: the volume %s has credentials %s in %s", v.ID(), v.Credentials, c.config))
	}
	return nil
}

func (c *configFlags) credentialsOf(v config.Volume) (dial etcdlock.DialConfig, err error) {
	if v.Credentials == "" {
		return dial, nil
	}
	if err := c.checkCredentialsDir(v); err != nil {
		return dial, err
	}
	dir := filepath.Join(c.credentials, v.Credentials)
	if _, err := os.Stat(dir); err != nil {
		return dial, fmt.Errorf("credentials: %w", err)
	}
	var username string
	for name, file := range map[string]*string{
		"ca.crt": &dial.CAFile, "tls.crt": &dial.CertFile, "tls.key": &dial.KeyFile, "username": &username, "password": &dial.PasswordFile,
	} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			*file = path
		} else if !errors.Is(err, os.ErrNotExist) {
			return dial, fmt.Errorf("credentials: %w", err)
		}
	}
	if username != "" {
		b, err := os.ReadFile(username)
		if err != nil {
			return dial, fmt.Errorf("credentials: %w", err)
		}
		dial.Username = strings.TrimSpace(string(b))
	}
	return dial, nil
}
