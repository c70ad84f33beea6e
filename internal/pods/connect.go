package pods

import (
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockfs/lockfs/internal/kubeconf"
)

// Connect returns a client for the cluster that kubeconf.Load finds, without a request.
func Connect(kubeconfig, userAgent string) (corev1client.CoreV1Interface, error) {
	conf, err := kubeconf.Load(kubeconfig)
	if err != nil {
		return nil, err
	}
	conf.UserAgent = userAgent
	return corev1client.NewForConfig(conf)
}
