#!/usr/bin/env bash
# Every test: test.sh short, as CI runs it, or test.sh long, when there is time. It says what it does, and in the end
# what it has left out. KUBERNETES=no leaves out what takes an API server, which takes 5 minutes to build, and 3 GB.
set -euo pipefail
cd "$(dirname "$0")/.."
extent=${1:?usage: test.sh short|long}
left_out=()

stage() { printf '== %d:%02d %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

packages=$(go list ./...)
skip='^$'
without_kubernetes() {
	left_out+=("Kubernetes: tests with Leases, lockmgr/kubelease and the cluster, for $1")
	packages=$(grep -v /lockmgr/kubelease$ <<<"$packages")
	skip='/^leases$'
	kubernetes=
}

case $extent in
short)
	stage 'linters'
	make --no-print-directory lint
	timeout=60m
	;;
long)
	export LOCKFS_TEST_LONG=${LOCKFS_TEST_LONG:-2m}
	stage "each test that repeats something goes on for $LOCKFS_TEST_LONG"
	timeout=6h
	;;
*)
	echo "usage: test.sh short|long" >&2
	exit 2
	;;
esac

kubernetes=yes
if [ "${KUBERNETES:-yes}" = no ]; then
	without_kubernetes 'KUBERNETES=no'
elif [ -z "${KUBECONFIG:-}" ]; then
	stage 'the programs of Kubernetes: 5 minutes, once'
	integration/kubelab/build.sh programs || without_kubernetes 'its programs cannot be built'
fi

# list prints the packages whose names match, or with -v those whose names do not.
list() { grep -E "$@" <<<"$packages" || true; }
of_integration='/integration/(commands|daemon|faults|programs|semantics)$'
one_goroutine='/(policy|lockmodel|internal/(arch|boottime|config|kubeconf|netvolume))$' # nothing to race
mapfile -t integration < <(list "$of_integration")
mapfile -t plain < <(list "$one_goroutine")
mapfile -t others < <(list -v "$of_integration|$one_goroutine")
raced='^Test(History|FaultsAtRandom|Differential|RandomInterrupts|InterruptAtEveryStep|CreateChurn|ReplaceChurn|FewESTALE|SavesBesideLinksAndOpens|LockFilesThatAreRemoved|ManyWritersOnTwoMounts)$'
# Most tests of integration wait: more of them than there are cores run side by side.
beside=(-p 5 -parallel 4)
beside_raced=(-p 3 -parallel 4) # lockfs takes 2.7 times as long

stage 'every package but integration'
go test -timeout $timeout "${plain[@]}"
go test -race -timeout $timeout "${others[@]}"
stage 'integration: real mounts, real programs and real faults'
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
chmod 755 "$bin" # other users run it as well
CGO_ENABLED=0 go build -o "$bin/lockfs" ./cmd/lockfs
LOCKFS_TEST_PROGRAM=$bin/lockfs go test "${beside[@]}" -timeout $timeout -skip "$skip" "${integration[@]}"
if [ $extent = short ]; then
	stage 'integration, what is random, with the race detector'
	go test -race "${beside_raced[@]}" -timeout $timeout -run "$raced" -skip '/^(leases|clients|keeping)$' "${integration[@]}"
else
	stage 'integration, with the race detector'
	go test -race "${beside_raced[@]}" -timeout $timeout -skip "$skip" "${integration[@]}"
fi
if [ $extent = short ]; then
	if [ -n "$kubernetes" ]; then
		stage 'a cluster of Kubernetes'
		scripts/cluster-test.sh smoke
	fi
	stage 'a network volume'
	scripts/volume-test.sh short
fi
stage 'all of it has passed'
for what in "${left_out[@]}"; do
	echo "LEFT OUT: $what"
done
