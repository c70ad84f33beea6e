package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockfs/lockfs/internal/pods"
)

// watchFlags say what the daemon reports besides the log.
type watchFlags struct {
	slowWait time.Duration
	podNames bool
}

func (w *watchFlags) register(f *pflag.FlagSet) {
	f.DurationVar(&w.slowWait, "slow-wait", 10*time.Second, "how long an open waits for a lock before the log says so. With --pod-names, the pods get an event too. 0: never")
	f.BoolVar(&w.podNames, "pod-names", false, "ask the cluster for the names of this node's pods, and put events on pods whose locks are lost, broken or waited for. The cluster knows this node as $NODE_NAME or --node")
}

func (w *watchFlags) check() error {
	if w.slowWait < 0 {
		return usage(fmt.Errorf("--slow-wait %v: want 0 or a positive duration", w.slowWait))
	}
	return nil
}

// pods starts to learn the names of pods, with --pod-names, until stop is called.
func (w *watchFlags) pods(kubeconfig, node string, log *slog.Logger) (p *pods.Pods, stop func(), err error) {
	if !w.podNames {
		return nil, func() {}, nil
	}
	client, err := pods.Connect(kubeconfig, "lockfs/"+buildVersion())
	if err != nil {
		return nil, nil, usage(fmt.Errorf("--pod-names: %w", err))
	}
	if node = cmp.Or(os.Getenv("NODE_NAME"), node); node == "" {
		if node, err = os.Hostname(); err != nil {
			return nil, nil, err
		}
	}
	if p, err = pods.Start(pods.Config{Client: client, Node: node, Logger: log}); err != nil {
		return nil, nil, err
	}
	return p, p.Close, nil
}
