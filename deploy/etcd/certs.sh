#!/bin/sh
# certs.sh NAMESPACE...: a CA, the certificate of etcd's members, root's, and one for each lockfs namespace, whose common
# name is the etcd user. They land in ./lockfs-pki ($LOCKFS_PKI), which makes certificates for more namespaces later, and in the
# cluster as Secrets. To try it out: elsewhere cert-manager or your own CA makes Secrets of the same names.
set -eu
[ $# -gt 0 ] || { sed -n '2,4s/^# //p' "$0"; exit 2; }
umask 077
mkdir -p "${LOCKFS_PKI:=lockfs-pki}"
cd "$LOCKFS_PKI"

[ -e ca.key ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=lockfs-etcd-ca \
	-keyout ca.key -out ca.crt 2>/dev/null

# issue NAME COMMON-NAME EXTENSIONS
issue() {
	[ ! -e "$1.crt" ] || return 0
	printf '%s\n' "$3" >"$1.ext"
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$2" -keyout "$1.key" -out "$1.csr" 2>/dev/null
	openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile "$1.ext" -out "$1.crt" 2>/dev/null
	rm "$1.ext" "$1.csr"
}

# secret NAMESPACE SECRET NAME
secret() {
	kubectl -n "$1" create secret generic "$2" --dry-run=client -o yaml \
		--from-file=ca.crt --from-file=tls.crt="$3.crt" --from-file=tls.key="$3.key" | kubectl apply -f -
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
