#!/bin/bash
# A real N-node Kubernetes on one Linux machine: no docker, no systemd, no registry. See README.md.
#   cluster.sh up N                 start N nodes (default 2)
#   cluster.sh down                 end everything
#   cluster.sh k ARGS...            kubectl
#   cluster.sh in NODE|ctl CMD...   run CMD in a node's namespaces
#   cluster.sh cut|heal NODE        take a node off the network, and back
#   cluster.sh kill NODE            kill -9 all of a node: it does not come back
#   cluster.sh helm ARGS...         helm, if 'build.sh csi' was run
#   cluster.sh image NAME:TAG ENTRYPOINT FILE=DEST...   make an image of static files; nodes load it at 'up'
#   cluster.sh lockfs               build lockfs, and give its image to the nodes
#   cluster.sh load                 load images made since 'up' into the running nodes
set -e
. "$(dirname "$0")/lib.sh"
self=$HERE/cluster.sh

wait_for() { # wait_for SECONDS WHAT CMD...
  local n=$(( $1 * 10 )) w=$2; shift 2
  for i in $(seq $n); do "$@" >/dev/null 2>&1 && { echo "$(date +%T.%N | cut -c1-12) $w"; return 0; }; sleep 0.1; done
  echo "NOT: $w (see $L)"; return 1
}

children() { cat /proc/$1/task/$1/children 2>/dev/null || true; }

pid_of() { # pid_of NODE|ctl: its init, as this machine knows it
  local init=$(cat $R/init.pid 2>/dev/null) u p
  [ $1 != ctl ] || { echo $init; return; }
  for u in $(children $init); do for p in $(children $u); do
    [ "$(tr '\0' ' ' < /proc/$p/cmdline)" != "bash $HERE/node-init.sh ${1#node} " ] || { echo $p; return; }
  done; done
  echo "no $1 runs" >&2; return 1
}

volume() { # volume N: a disk for a StatefulSet, which every node reaches
  cat <<Y
---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: disk-$1}, spec: {capacity: {storage: 2Gi}, accessModes: [ReadWriteOnce], hostPath: {path: $R/pv/$1}}}
Y
}

alive() { [ -s $R/init.pid ] && kill -0 $(cat $R/init.pid) 2>/dev/null; }

case "$1" in
up)
  N=${2:-2}; export N
  ! alive || { echo "already up"; exit 1; }
  [ -x $B/kubelet ] || { echo "not built: run $HERE/build.sh"; exit 1; }
  rm -rf $R $L; mkdir -p $R/shared $R/media $R/pv $L; chmod 1777 $R/shared $R/media $R/pv
  nodes=(); for i in $(seq $N); do nodes+=(node$i=10.89.0.1$i); done
  $B/mkpki $P https://10.89.0.1:443 10.89.0.1 "${nodes[@]}"
  setsid unshare -m -n -p -C -i -u --fork --kill-child --mount-proc --propagation private bash $HERE/ctl-init.sh > $L/ctl-init.log 2>&1 < /dev/null &
  U=$!
  for i in $(seq 100); do c=$(children $U | tr -d ' '); [ -z "$c" ] || break; sleep 0.05; done
  echo $c > $R/init.pid; echo $N > $R/nodes
  # KUBELAB_LIFE names a descriptor of a pipe: the cluster ends with whoever has the other end, however that ends.
  # Its state goes as well, unless something was written to the pipe.
  if [ -n "$KUBELAB_LIFE" ]; then
    setsid bash -c 'keep=$(cat <&$0); $1 down; [ -n "$keep" ] || rm -rf $2' $KUBELAB_LIFE $self $STATE > /dev/null 2>&1 < /dev/null &
  fi
  wait_for 120 "apiserver ready" $self in ctl bash -c '. $0/lib.sh; apiserver_ready' $HERE
  for i in $(seq $N); do wait_for 60 "node$i ready" sh -c "$self k get node node$i | grep -qw Ready"; done
  wait_for 60 "service accounts ready" $self k get serviceaccount default
  for i in 1 2 3; do mkdir -m 1777 $R/pv/$i; volume $i; done | $self k apply -f - >/dev/null
  ;;
down)
  ! alive || kill -9 $(cat $R/init.pid) || true   # and all in its pid namespace
  rm -f $R/init.pid
  for i in $(seq 50); do
    left=$(find /sys/fs/cgroup -depth -type d -path "*/$ID-*" 2>/dev/null || true)
    [ -n "$left" ] || break
    rmdir $left 2>/dev/null || sleep 0.2
  done
  rm -rf $R/node*/containerd
  ;;
in)
  pid=$(pid_of $2); shift 2
  exec nsenter -t $pid -m -n -p -C -i -u -- sh -c 'cd "$0" 2>/dev/null || cd /; exec "$@"' "$PWD" "$@"
  ;;
cut) exec $self in ctl ip link set v${2#node} down ;;
heal) $self in ctl ip link set v${2#node} up; exec $self in ctl ip route replace 10.90.${2#node}.0/24 via 10.89.0.1${2#node} ;;
kill) kill -9 $(pid_of $2) ;;
k) shift; exec $self in ctl $B/kubectl --kubeconfig=$P/admin.kubeconfig "$@" ;;
helm) shift; exec $self in ctl $B/helm --kubeconfig=$P/admin.kubeconfig "$@" ;;
image) shift; mkdir -p $IMG; exec $B/mkimage $IMG/$(echo $1 | tr '/:' '__').tar "$@" ;;
lockfs)
  make -s -C $HERE/../.. build
  name=$(sed -n 's/^ *image: \(.*lockfs:.*\)/\1/p' $HERE/../../deploy/daemonset/base/daemonset.yaml)
  $self image $name /usr/local/bin/lockfs $HERE/../../bin/lockfs=/usr/local/bin/lockfs
  ! alive || $self load
  ;;
load) for i in $(seq $(cat $R/nodes)); do $self in node$i bash -c '. $0/lib.sh; load_images' $HERE; done ;;
*) sed -n '2,12s/^# \{0,1\}//p' $0; exit 2 ;;
esac
