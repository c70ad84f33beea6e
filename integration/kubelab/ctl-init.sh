#!/bin/bash
set -e; . $HERE/lib.sh
umount -R -l /sys; mount -t sysfs sysfs /sys
mount --make-rshared /
fresh_cgroups
# As machines of their own would, control plane and nodes (below) get processor time before what else runs here: an API
# server that stands still for seconds is an outage, and programs are told so.
mkdir /sys/fs/cgroup/cpu/$ID-ctl; echo 8192 > /sys/fs/cgroup/cpu/$ID-ctl/cpu.shares; echo $$ > /sys/fs/cgroup/cpu/$ID-ctl/cgroup.procs
mount -t tmpfs -o mode=755 tmpfs /run; mkdir -p /run/netns /run/lock
hostname ctl
ip link set lo up
ip addr add 10.96.0.1/32 dev lo       # the "kubernetes" service address; the apiserver listens there, on 443
ip link add br0 type bridge; ip addr add 10.89.0.1/24 dev br0; ip link set br0 up
echo 1 > /proc/sys/net/ipv4/ip_forward
for i in $(seq $N); do
  ip netns add node$i
  ip link add v$i type veth peer name eth0 netns node$i
  ip link set v$i master br0 up
  ip route add 10.90.$i.0/24 via 10.89.0.1$i
done
run etcd $B/etcd --name n1 --data-dir $R/etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster n1=http://127.0.0.1:2380 --unsafe-no-fsync
run apiserver env GOGC=400 $B/kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
 --bind-address=0.0.0.0 --secure-port=443 --advertise-address=10.89.0.1 --endpoint-reconciler-type=master-count \
 --tls-cert-file=$P/apiserver.crt --tls-private-key-file=$P/apiserver.key --client-ca-file=$P/ca.crt \
 --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --anonymous-auth=false \
 --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=$P/sa.pub --service-account-signing-key-file=$P/sa.key \
 --service-cluster-ip-range=10.96.0.0/16 --kubelet-preferred-address-types=InternalIP \
 --kubelet-certificate-authority=$P/ca.crt --kubelet-client-certificate=$P/apiserver-kubelet-client.crt --kubelet-client-key=$P/apiserver-kubelet-client.key \
 --allow-privileged=true
# nodes: own sub-cgroup first, so that the cgroup namespace made next is rooted there
for i in $(seq $N); do
  for c in $CGROUPS systemd; do
    d=/sys/fs/cgroup/$c/$ID-node$i; mkdir $d
    [ $c != cpu ] || echo 4096 > $d/cpu.shares
    [ $c = cpuset ] && { cat /sys/fs/cgroup/cpuset/cpuset.mems > $d/cpuset.mems; cat /sys/fs/cgroup/cpuset/cpuset.cpus > $d/cpuset.cpus; }
  done
  ( for c in $CGROUPS systemd; do echo $BASHPID > /sys/fs/cgroup/$c/$ID-node$i/cgroup.procs; done
    exec nsenter --net=/run/netns/node$i unshare -m -p -C -i -u --fork --kill-child --mount-proc --propagation private \
      bash $HERE/node-init.sh $i > $L/node$i-init.log 2>&1 < /dev/null ) &
done
# controllers: once the apiserver answers (they would only retry with back-off before)
for i in $(seq 600); do apiserver_ready && break; sleep 0.1; done
run kcm $B/kube-controller-manager --kubeconfig=$P/kcm.kubeconfig --use-service-account-credentials=true --service-account-private-key-file=$P/sa.key \
 --root-ca-file=$P/ca.crt --leader-elect=false --bind-address=127.0.0.1 --authentication-kubeconfig=$P/kcm.kubeconfig --authorization-kubeconfig=$P/kcm.kubeconfig \
 --node-monitor-period=1s --node-monitor-grace-period=12s
run services $B/services https://10.89.0.1 $P
run scheduler $B/kube-scheduler --kubeconfig=$P/scheduler.kubeconfig --leader-elect=false --bind-address=127.0.0.1 \
 --authentication-kubeconfig=$P/scheduler.kubeconfig --authorization-kubeconfig=$P/scheduler.kubeconfig
set +e
trap 'exit 0' TERM
while :; do sleep 3600 & wait $!; done
