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

of_integration='/integration/\(commands\|daemon\|faults\|programs\|semantics\)$'
integration=$(grep "$of_integration" <<<"$packages")
packages=$(grep -v "$of_integration" <<<"$packages")
raced='^Test(History|FaultsAtRandom|Differential|RandomInterrupts|InterruptAtEveryStep|CreateChurn|ReplaceChurn|FewESTALE|SavesBesideLinksAndOpens|LockFilesThatAreRemoved|ManyWritersOnTwoMounts)$'

stage 'every package but integration'
# shellcheck disable=SC2086
go test -race -timeout $timeout $packages
# shellcheck disable=SC2086
stage 'integration: real mounts, real programs and real faults'
go test -timeout $timeout -skip "$skip" $integration
# With the race detector lockfs takes 2.7 times as long: all of it in the long run.
if [ $extent = short ]; then
	stage 'integration, what is random, with the race detector'
	go test -race -timeout $timeout -run "$raced" $integration
else
	stage 'integration, with the race detector'
	go test -race -timeout $timeout -skip "$skip" $integration
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
