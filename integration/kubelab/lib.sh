# Settings and helpers that every script here shares.
HERE=${HERE:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}; export HERE
STATE=${KUBELAB_STATE:-/var/tmp/kubelab}; export KUBELAB_STATE=$STATE
B=${KUBELAB_BIN:-/var/tmp/kubelab/bin}; export KUBELAB_BIN=$B   # built once, for all clusters of a machine
R=$STATE/run; L=$STATE/logs; P=$R/pki; IMG=$STATE/img           # one cluster's own
ID=kubelab-$(echo "$STATE" | cksum | cut -d' ' -f1)             # its cgroups
export B R L P IMG ID
CGROUPS="cpu cpuacct cpuset memory devices freezer blkio pids"

fresh_cgroups() { # own views of the cgroup v1 hierarchies, rooted at this process's cgroups (needs a cgroup namespace)
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  for c in $CGROUPS; do mkdir /sys/fs/cgroup/$c; mount -t cgroup -o $c cgroup /sys/fs/cgroup/$c; done
  mkdir /sys/fs/cgroup/systemd; mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
}

run() { # run NAME CMD...: a daemon as a child of this pid 1, its output in logs/NAME.log
  local n=$1; shift
  ( exec "$@" >> $L/$n.log 2>&1 < /dev/null ) &
}

load_images() { # into the containerd of the node we are in
  local f
  for f in $B/img/*.tar $IMG/*.tar; do
    [ ! -e $f ] || ctr -a /run/containerd/containerd.sock -n k8s.io images import $f
  done
}

apiserver_ready() { curl -sf --cacert $P/ca.crt --cert $P/admin.crt --key $P/admin.key https://10.89.0.1/readyz >/dev/null; }
