#!/bin/bash
set -e; i=$1; . $HERE/lib.sh; D=$R/node$i; mkdir -p $D
umount -R -l /sys; mount -t sysfs sysfs /sys
mount --make-rshared /
fresh_cgroups
for t in /run /srv /var/lib /var/log; do mount -t tmpfs -o mode=755 tmpfs $t; done     # nothing of the node's lands in the machine's own
mkdir -p /run/netns /run/lock /var/lib/kubelet /var/log/pods
for v in shared media; do mkdir /srv/$v; mount --bind $R/$v /srv/$v; done               # the shared volumes
# kernel tunables that kubelet would otherwise set for the whole machine: it finds them as it wants them
fake() { echo $2 > /run/fake.$(basename $1); mount --bind /run/fake.$(basename $1) $1; }
fake /proc/sys/vm/overcommit_memory 1; fake /proc/sys/vm/panic_on_oom 0; fake /proc/sys/kernel/panic 10
fake /proc/sys/kernel/panic_on_oops 1; fake /proc/sys/kernel/keys/root_maxkeys 1000000; fake /proc/sys/kernel/keys/root_maxbytes 25000000
hostname node$i
ip link set lo up; ip addr add 10.89.0.1$i/24 dev eth0; ip link set eth0 up; ip route add default via 10.89.0.1
echo 1 > /proc/sys/net/ipv4/ip_forward
mkdir -p /run/cni
cat > /run/cni/10-bridge.conflist <<E
{"cniVersion":"1.0.0","name":"podnet","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,"hairpinMode":true,
 "ipam":{"type":"host-local","ranges":[[{"subnet":"10.90.$i.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}],"dataDir":"/run/cni-ipam"}}]}
E
cat > /run/containerd.toml <<E
version = 2
root = "$D/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "/run/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.local/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/run/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
E
run node$i-containerd /usr/bin/containerd --config /run/containerd.toml
for n in $(seq 100); do ctr -a /run/containerd/containerd.sock version >/dev/null 2>&1 && break; sleep 0.1; done
load_images
cat > /run/kubelet.yaml <<E
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
address: 10.89.0.1$i
readOnlyPort: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $P/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $P/node$i-serving.crt
tlsPrivateKeyFile: $P/node$i-serving.key
resolvConf: ""
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
failSwapOn: false
makeIPTablesUtilChains: false
evictionHard: {memory.available: "100Mi", nodefs.available: "1%", imagefs.available: "1%"}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 10
E
for n in $(seq 600); do apiserver_ready && break; sleep 0.1; done
run node$i-kubelet $B/kubelet --config=/run/kubelet.yaml --kubeconfig=$P/node$i.kubeconfig --hostname-override=node$i --node-ip=10.89.0.1$i --root-dir=/var/lib/kubelet --v=2
set +e
trap 'exit 0' TERM
while :; do sleep 3600 & wait $!; done
