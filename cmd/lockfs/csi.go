package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/internal/csi"
)

// csiOptions are the flags of 'lockfs csi'.
type csiOptions struct {
	logFlags
	endpoint   string
	config     string
	node       string
	kubeletDir string
	controller bool
	inline     bool
}

func newCSI() *cobra.Command {
	o := &csiOptions{logFlags: newLogFlags()}
	cmd := &cobra.Command{
		Use:   "csi --config FILE",
		Short: "Give views to pods: the CSI driver lockfs.io",
		Long: `Serve the CSI driver lockfs.io at a unix socket, until the command receives SIGINT,
SIGTERM or SIGHUP. Kubernetes asks it to give a view, or a directory in it, to a pod.

The command serves no view: 'lockfs serve' does, beside it on each node, with the same
FILE. When the daemon has made a new view, the command mounts that in place of the old
one, also in containers that run.

With --controller it makes and removes the directories of claims, once in the cluster.`,
		Example: `  # On each node, as deploy/csi has it
  lockfs csi --config /etc/lockfs/lockfs.yaml --endpoint unix:///csi/csi.sock --node node1

  # For a StorageClass
  lockfs csi --controller --config /etc/lockfs/lockfs.yaml --endpoint unix:///csi/csi.sock`,
		Args: wants("no argument: give the file by --config", cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.config, "config", "", "`file` of the daemon, which lists the volumes; required")
	f.StringVar(&o.endpoint, "endpoint", "unix:///csi/csi.sock", "`URL` of the unix socket to serve at")
	f.StringVar(&o.node, "node", "", "`name` of this node in the cluster (default: the host name)")
	f.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet", "`directory` of the kubelet, below which volumes are published")
	f.BoolVar(&o.controller, "controller", false, "make, enlarge and remove the directories of claims, instead of serving a node")
	f.BoolVar(&o.inline, "inline-volumes", false, "let the manifest of a pod name a volume, if the volume's namespace is the pod's. Whoever can create pods in a namespace can then use its volumes")
	o.logFlags.register(cmd)
	bindEnv(cmd)
	return cmd
}

func (o *csiOptions) run(cmd *cobra.Command) error {
	switch {
	case o.config == "":
		return usage(errors.New("--config is required: name the file of the daemon"))
	case !filepath.IsAbs(o.kubeletDir):
		return usage(fmt.Errorf("--kubelet-dir %s: want an absolute path", o.kubeletDir))
	case o.node == "":
		var err error
		if o.node, err = os.Hostname(); err != nil {
			return err
		}
	}
	if socket, ok := strings.CutPrefix(o.endpoint, "unix://"); !ok || !filepath.IsAbs(socket) {
		return usage(fmt.Errorf("--endpoint %s: want unix:///path/of/a/socket", o.endpoint))
	}
	volumes, err := volumesOf(o.config)
	if err != nil {
		return usage(err)
	}
	return csi.New(csi.Config{
		Controller: o.controller, Node: o.node, KubeletDir: filepath.Clean(o.kubeletDir), Volumes: volumes,
		Inline: o.inline, Version: buildVersion(), Logger: o.logger(),
	}).Run(cmd.Context(), o.endpoint)
}

// volumesOf returns the volumes of a file at any time. While the file has a mistake, they are those
// that it had before: the daemon serves these.
func volumesOf(file string) (func() []config.Volume, error) {
	reader := config.NewReader(file)
	last, err := reader.Load()
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	return func() []config.Volume {
		mu.Lock()
		defer mu.Unlock()
		if f, err := reader.Load(); err == nil {
			last = f
		}
		return last.Volumes
	}, nil
}
