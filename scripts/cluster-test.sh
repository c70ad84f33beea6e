#!/usr/bin/env bash
# The tests on a cluster of integration/kubelab, smoke or full, where there can be one: cluster-test.sh smoke|full
set -euo pipefail
cd "$(dirname "$0")/.."

why_not() {
	[ "$(id -u)" = 0 ] || { echo "it takes root"; return; }
	[ -d /sys/fs/cgroup/cpu ] || { echo "it takes cgroup v1; with kind or another cluster: see integration/cluster/doc.go"; return; }
	command -v apt-get >/dev/null || command -v containerd >/dev/null || { echo "it takes containerd, runc and CNI's plugins"; return; }
	unshare -m -n -p -C -i -u --fork true 2>/dev/null || echo "it takes namespaces"
}
reason=$(why_not)
if [ -n "$reason" ]; then
	echo "no cluster here: $reason"
	[ "$1" = smoke ] # asked for by name, it has to run
	exit
fi
integration/kubelab/build.sh
[ "$1" = smoke ] || integration/kubelab/build.sh csi
make build # into the cache, before clocks run
LOCKFS_CLUSTER=$1 exec go test -v -count=1 -parallel 2 -timeout 60m ./integration/cluster
