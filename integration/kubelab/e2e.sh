#!/bin/bash
# Kubernetes' own end-to-end tests of a storage driver, for lockfs.io, on a cluster of their own: e2e.sh [FLAG OF e2e.test...].
# About 10 minutes to build, once, and 15 to run.
#
# What is left out: tests that need ssh to a node ([Disruptive]); those of data sources, which need images of others; and what
# lockfs has not: block volumes, snapshots, clones, topology, fsGroup, inline volumes of other namespaces.
set -e
export KUBELAB_STATE=${KUBELAB_STATE:-/var/tmp/lockfs-e2e}
. "$(dirname "$0")/lib.sh"
cluster=$HERE/cluster.sh
$HERE/build.sh
$HERE/build.sh csi
(
  cd $HERE/e2e
  export CGO_ENABLED=0 GOFLAGS=-buildvcs=false
  go test -c -trimpath -ldflags "-s -w" -o $B/e2e.test k8s.io/kubernetes/test/e2e
  go build -trimpath -ldflags "-s -w" -o $B/agnhost k8s.io/kubernetes/test/images/agnhost
)

work=$(mktemp -d)
trap '$cluster down; rm -rf $work $STATE' EXIT
# The images of the tests: a shell, and agnhost.
mkdir -p $work/root/bin $work/root/tmp $work/root/etc
cp $(command -v busybox) $work/root/bin/busybox
for c in $($work/root/bin/busybox --list) bash; do [ $c = busybox ] || ln -s busybox $work/root/bin/$c; done
echo root:x:0:0:root:/root:/bin/sh > $work/root/etc/passwd
echo root:x:0: > $work/root/etc/group
images=registry.k8s.io/e2e-test-images
for image in busybox:1.37.0-1 glibc-dns-testing:2.0.0 nginx:1.15-4; do
  $cluster image $images/$image /bin/sh $work/root=/
done
cp $B/agnhost $work/root/agnhost
$cluster image $images/agnhost:2.63.0 /agnhost $work/root=/
$cluster lockfs

$cluster up 2
$cluster k apply -k $HERE/../../deploy/daemonset/overlays/kubernetes-csi
for what in daemonset/lockfs daemonset/lockfs-csi-node deployment/lockfs-csi-controller; do
  $cluster k -n lockfs-system rollout status $what --timeout=3m
done
sed "s,STORAGECLASS,$HERE/e2e/storageclass.yaml," $HERE/e2e/driver.yaml > $work/driver.yaml
$cluster in ctl $B/e2e.test --kubeconfig=$P/admin.kubeconfig --provider=local --storage.testdriver=$work/driver.yaml \
  --ginkgo.no-color --ginkgo.timeout=1h --ginkgo.focus='External.Storage' \
  --ginkgo.skip='\[Disruptive\]|data source|\[Feature:|\[FeatureGate|ntfs|block volmode|Snapshot' "$@"
