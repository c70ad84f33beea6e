#!/bin/sh
# users.sh NAMESPACE...: makes an etcd user and a role for each lockfs namespace, without access to other namespaces, and
# turns on authentication. $KUBECTL is the kubectl to use, such as 'integration/kubelab/cluster.sh k'.
set -eu
[ $# -gt 0 ] || { sed -n '2,3s/^# //p' "$0"; exit 2; }
ctl() { ${KUBECTL:-kubectl} -n lockfs-etcd exec etcd-0 -- etcdctl "$@"; }
# have KIND NAME COMMAND...: what exists already stays
have() {
	kind=$1 name=$2
	shift 2
	ctl "$kind" get "$name" >/dev/null 2>&1 || ctl "$@"
}

have user root user add root --no-password
have role root role add root
ctl user grant-role root root
for ns; do
	have role "$ns" role add "$ns"
	ctl role grant-permission --prefix=true "$ns" readwrite "/locks/$ns/"
	ctl role grant-permission --prefix=true "$ns" readwrite "/lockfs/$ns/"
	have user "$ns" user add "$ns" --no-password
	ctl user grant-role "$ns" "$ns"
done
ctl auth enable
