#!/bin/bash
# Builds what cluster.sh runs, once: about 5 minutes on 2 free cores, skipped while its sources stand as they were.
# It all lands in KUBELAB_BIN (/var/tmp/kubelab/bin): a CI keeps that directory. 'build.sh programs' builds those of Kubernetes and etcd
# alone, which takes no root: tests of the API server by itself run them. 'build.sh csi' adds the sidecars of the CSI driver, and helm.
set -e
. "$(dirname "$0")/lib.sh"
mkdir -p $B/img
exec 9> $B/lock; flock 9
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false
need=; for c in containerd runc ip curl ctr iptables busybox; do command -v $c >/dev/null || need=1; done; [ -x /usr/lib/cni/bridge ] || need=1
if [ -n "$need" ] && [ "${1:-}" != programs ]; then
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends containerd runc containernetworking-plugins iproute2 iptables curl busybox-static
fi
stamp=$(cat $HERE/kubeall/go.sum $HERE/kubeall/main.go | sha256sum | cut -c1-16)
if [ "$(cat $B/kubeall.stamp 2>/dev/null)" != $stamp ]; then
  v=k8s.io/component-base/version
  cd $HERE/kubeall
  go build -trimpath -ldflags "-s -w -X $v.gitVersion=v1.36.3 -X $v.gitMajor=1 -X $v.gitMinor=36" -o $B/kubeall .
  for c in kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do ln -sf kubeall $B/$c; done
  go build -trimpath -ldflags "-s -w" -o $B/etcd go.etcd.io/etcd/server/v3
  go build -trimpath -ldflags "-s -w" -o $B/etcdctl go.etcd.io/etcd/etcdctl/v3
  echo $stamp > $B/kubeall.stamp
fi
[ "${1:-}" != programs ] || exit 0
if [ "${1:-}" = csi ]; then
  (cd $HERE/kubeall && go build -trimpath -ldflags "-s -w" -o $B/csi-sidecars ./sidecars)
  (cd $HERE/provisioner && go build -trimpath -ldflags "-s -w" -o $B/csi-provisioner github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner)
  (cd $HERE/resizer && go build -trimpath -ldflags "-s -w" -o $B/csi-resizer github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer)
  (cd $HERE/../helm && go build -trimpath -ldflags "-s -w" -o $B/helm helm.sh/helm/v3/cmd/helm)
  sidecar() { $B/mkimage $B/img/$1.tar $(grep -rho "registry.k8s.io/sig-storage/$1:[^ ]*" $HERE/../../deploy/csi) /$2 $B/$2=/$2; } # as the manifests name it
  sidecar csi-node-driver-registrar csi-sidecars; sidecar livenessprobe csi-sidecars; sidecar csi-provisioner csi-provisioner
  sidecar csi-resizer csi-resizer
  exit 0
fi
cd $HERE
go build -trimpath -ldflags "-s -w" -o $B ./mkpki ./pause ./services ../../deploy/mkimage

# Images that others would pull: of the same programs, under the names that manifests use.
root=$(mktemp -d); trap 'rm -rf $root' EXIT
mkdir -p $root/bin $root/tmp; cp $(command -v busybox) $root/bin/busybox
for c in $($root/bin/busybox --list); do [ $c = busybox ] || ln -s busybox $root/bin/$c; done
$B/mkimage $B/img/busybox.tar docker.io/library/busybox:1.37 /bin/sh $root=/
$B/mkimage $B/img/pause.tar registry.local/pause:1 /pause $B/pause=/pause
$B/mkimage $B/img/etcd.tar gcr.io/etcd-development/etcd:v3.6.8 /usr/local/bin/etcd $B/etcd=/usr/local/bin/etcd $B/etcdctl=/usr/local/bin/etcdctl
