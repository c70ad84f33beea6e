// Package cluster tests lockfs in Kubernetes: the manifests as they are in the
// repository, programs that know nothing of it, and nodes that die.
//
//	make cluster-test      everything: 2 and 3 nodes, both lock services
//	make test              the short form, where a cluster can be had
//
// The cluster is integration/kubelab's, made for the test. On another one, kind
// or real, all runs but what cuts nodes off:
//
//	LOCKFS_CLUSTER=full LOCKFS_TEST_KUBECONFIG=~/.kube/config LOCKFS_TEST_IMAGE=example/lockfs:1 go test ./integration/cluster
//
// Its nodes need the image, and at /srv/shared and /srv/media two shared
// directories, the same on all, empty, in which everybody may write.
package cluster
