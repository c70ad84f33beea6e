// Package kubeconf finds the API server of a Kubernetes cluster.
package kubeconf

import (
	"errors"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Load returns how the API server is reached that a kubeconfig file names or, if
// file is empty, that of the cluster which this process runs in, or else the one that
// $KUBECONFIG names. It asks nothing of it.
func Load(file string) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}
	if file == "" {
		conf, err := rest.InClusterConfig()
		if err == nil || !errors.Is(err, rest.ErrNotInCluster) {
			return conf, err
		}
		files := os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
		if files == "" {
			return nil, errors.New("not in a pod, and neither --kubeconfig nor $KUBECONFIG names a file")
		}
		rules = &clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(files)}
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
}
