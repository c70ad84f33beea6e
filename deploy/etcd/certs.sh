#!/bin/sh
# certs.sh NAMESPACE...: a CA, the certificate of etcd's members, root's, and one for each lockfs namespace, whose common
# name is the etcd user. They land in ./lockfs-pki ($LOCKFS_PKI), which makes certificates for more namespaces later, and in the
# cluster as Secrets. To try it out: elsewhere cert-manager or your own CA makes Secrets of the same names.
# $KUBECTL is the kubectl to use, such as 'integration/kubelab/cluster.sh k'.
set -eu
[ $# -gt 0 ] || { sed -n '2,5s/^# //p' "$0"; exit 2; }
kubectl() { ${KUBECTL:-command kubectl} "$@"; }
umask 077
mkdir -p "${LOCKFS_PKI:=lockfs-pki}"
pki=$(cd "$LOCKFS_PKI" && pwd)

[ -e "$pki/ca.key" ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=lockfs-etcd-ca \
	-keyout "$pki/ca.key" -out "$pki/ca.crt" 2>/dev/null

# issue NAME COMMON-NAME EXTENSIONS
issue() {
	[ ! -e "$pki/$1.crt" ] || return 0
	printf '%s\n' "$3" >"$pki/$1.ext"
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$2" -keyout "$pki/$1.key" -out "$pki/$1.csr" 2>/dev/null
	openssl x509 -req -in "$pki/$1.csr" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -days 365 -extfile "$pki/$1.ext" -out "$pki/$1.crt" 2>/dev/null
	rm "$pki/$1.ext" "$pki/$1.csr"
}

# secret NAMESPACE SECRET NAME
secret() {
	kubectl -n "$1" create secret generic "$2" --dry-run=client -o yaml \
		--from-file=ca.crt="$pki/ca.crt" --from-file=tls.crt="$pki/$3.crt" --from-file=tls.key="$pki/$3.key" | kubectl apply -f -
}

for ns in lockfs-etcd lockfs-system; do
	kubectl create namespace "$ns" --dry-run=client -o yaml | kubectl apply -f -
done
issue etcd etcd 'extendedKeyUsage=serverAuth,clientAuth
subjectAltName=DNS:*.etcd.lockfs-etcd.svc,DNS:*.etcd.lockfs-etcd.svc.cluster.local,DNS:localhost,IP:127.0.0.1'
secret lockfs-etcd etcd-server etcd
issue root root extendedKeyUsage=clientAuth
secret lockfs-etcd etcd-root root
for user; do
	issue "user-$user" "$user" extendedKeyUsage=clientAuth
	secret lockfs-system "lockfs-etcd-$user" "user-$user"
done
