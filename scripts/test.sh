#!/usr/bin/env bash
# Every test: test.sh short, as CI runs it, or test.sh long, when there is time. It says what it does, and in the end
# what it has left out. KUBERNETES=no leaves out what takes an API server, which takes 5 minutes to build, and 3 GB.
set -euo pipefail
cd "$(dirname "$0")/.."
extent=${1:?usage: test.sh short|long}
left_out=()

stage() { printf '== %d:%02d %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# Each command is a job, in a process group of its own. When the script ends, however that is, so do its jobs, with all
# that they have started.
declare -A jobs=()
begin() { # begin CMD...: sets job
	set -m
	"$@" </dev/null &
	job=$!
	set +m
	jobs[$job]=$*
}
await() { # await JOB: returns its status
	local status=0
	wait "$1" || status=$?
	unset "jobs[$1]"
	return $status
}
run() {
	begin "$@"
	await "$job"
}
end() { # end JOB, as ^C would, and what does not heed that in other ways
	local signal
	for signal in INT TERM KILL; do
		kill -$signal -- "-$1" 2>/dev/null || return 0
		stage "ends ${jobs[$1]:0:60}"
		for _ in {1..150}; do
			kill -0 -- "-$1" 2>/dev/null || return 0
			sleep 0.1
		done
	done
}
work=$(mktemp -d)
chmod 755 "$work" # other users run what is in it
leave() {
	for job in "${!jobs[@]}"; do
		end "$job"
	done
	rm -rf "$work"
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

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
	run make --no-print-directory lint
	timeout=15m # of a package: it ends with a trace of all goroutines
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
	run integration/kubelab/build.sh programs || without_kubernetes 'its programs cannot be built'
fi

# list prints the packages whose names match, or with -v those whose names do not.
list() { grep -E "$@" <<<"$packages" || true; }
of_integration='/integration/(commands|daemon|faults|programs|semantics)$'
# Nothing to race.
one_goroutine='/(policy|lockmodel|cmd/lockfs|deploy/mkimage|bench/internal/.*|integration/(cluster|volumes)|internal/(arch|boottime|config|kubeconf|longtest|netvolume))$'
mapfile -t integration < <(list "$of_integration")
mapfile -t plain < <(list "$one_goroutine")
mapfile -t others < <(list -v "$of_integration|$one_goroutine")
raced='^Test(History|FaultsAtRandom|Differential|RandomInterrupts|InterruptAtEveryStep|CreateChurn|ReplaceChurn|FewESTALE|SavesBesideLinksAndOpens|LockFilesThatAreRemoved|ManyWritersOnTwoMounts)$'
mapfile -t with_raced < <(list '/integration/(faults|programs|semantics)$') # which have those
# Most tests wait: more packages than there are cores run side by side.
beside_units=(-p 3 -parallel 8)
beside=(-p 5 -parallel 4)
beside_raced=(-p 3 -parallel 4) # lockfs takes 2.7 times as long

# The cluster and the network volume wait more than they work. They have machines of their own, in namespaces.
elsewhere() {
	trap 'exit 130' INT # else the next one begins when one was ended
	export TMPDIR=$work
	local failed=0
	if [ -n "$kubernetes" ]; then
		part cluster scripts/cluster-test.sh smoke || failed=1
	fi
	part volume scripts/volume-test.sh short || failed=1
	return $failed
}
part() { # part NAME CMD...
	local name=$1 outcome=passed
	shift
	"$@" >"$work/$name.log" 2>&1 || outcome=FAILED
	stage "the $name has $outcome"
	[ $outcome = passed ]
}
show_elsewhere() { # show_elsewhere CMD...: prints the logs through CMD
	for log in "$work"/cluster.log "$work"/volume.log; do
		[ ! -e "$log" ] || { echo "-- $(basename "$log" .log)"; "$@" "$log"; }
	done
}
if [ $extent = short ]; then
	stage "a ${kubernetes:+cluster of Kubernetes, then a }network volume, beside what follows"
	begin elsewhere
	elsewhere=$job
fi

stage 'every package but integration'
run go test -timeout $timeout "${plain[@]}"
run go test -race "${beside_units[@]}" -timeout $timeout "${others[@]}"
stage 'integration: real mounts, real programs and real faults'
CGO_ENABLED=0 go build -o "$work/lockfs" ./cmd/lockfs
LOCKFS_TEST_PROGRAM=$work/lockfs run go test "${beside[@]}" -timeout $timeout -skip "$skip" "${integration[@]}"
go build -race -o "$work/lockfs" ./cmd/lockfs
export LOCKFS_TEST_PROGRAM=$work/lockfs
if [ $extent = short ]; then
	stage 'integration, what is random, with the race detector'
	run go test -race "${beside_raced[@]}" -timeout $timeout -run "$raced" -skip '/^(leases|clients|keeping)$' "${with_raced[@]}"
	stage 'waits for the cluster and the network volume'
	if ! await "$elsewhere"; then
		show_elsewhere cat
		stage 'FAILED: the cluster or the network volume'
		exit 1
	fi
	show_elsewhere tail -n 20
else
	stage 'integration, with the race detector'
	run go test -race "${beside_raced[@]}" -timeout $timeout -skip "$skip" "${integration[@]}"
fi
stage 'all of it has passed'
for what in "${left_out[@]}"; do
	echo "LEFT OUT: $what"
done
