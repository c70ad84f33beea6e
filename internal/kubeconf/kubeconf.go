// Package kubeconf finds the API server of a Kubernetes cluster.
package kubeconf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Load returns the configuration of a client: of the kubeconfig file if it is named, else
// of the cluster in which this process runs, else of $KUBECONFIG. It sends no request.
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
	conf, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil && file != "" {
		err = fmt.Errorf("--kubeconfig: %w", err)
	}
	return conf, err
}
