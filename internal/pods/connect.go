package pods

import (
	"errors"
	"os"
	"path/filepath"

	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Connect returns a client for the cluster that this process runs in or, outside
// of one, that $KUBECONFIG names. It asks nothing of it.
func Connect() (corev1client.CoreV1Interface, error) {
	conf, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		files := os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
		if files == "" {
			return nil, errors.New("not in a pod, and $KUBECONFIG names no file")
		}
		rules := &clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(files)}
		conf, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	}
	if err != nil {
		return nil, err
	}
	conf.UserAgent = "lockfs"
	return corev1client.NewForConfig(conf)
}
