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
	[ $status = 0 ] || end "$1" # a test binary that panics leaves its daemons behind
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

# Where a process costs ten times what it should, as on a virtual machine without the processor's help, what runs side
# by side elsewhere gets too little of it, and runs one after the other: 40 minutes.
TIMEFORMAT='%U %S'
cost=$( (time for _ in {1..50}; do /bin/true; done) 2>&1 | awk '{print int(($1 + $2) * 20)}') # ms of CPU each
slow_machine= side_by_side=3
if [ "$cost" -ge 3 ]; then
	slow_machine=yes side_by_side=2
	stage "a process takes $cost ms of CPU to start: one part at a time"
fi

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
	timeout=40m   # of a package: it ends with a trace of all goroutines. A slow machine takes 15 minutes
	vet=(-vet=off) # the linters did
	;;
long)
	export LOCKFS_TEST_LONG=${LOCKFS_TEST_LONG:-2m}
	stage "each test that repeats something goes on for $LOCKFS_TEST_LONG"
	timeout=6h
	vet=()
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
of_integration='/integration/(commands|daemon|faults|handover|programs|semantics)$'
# Nothing to race.
one_goroutine='/(policy|lockmodel|cmd/lockfs|deploy/mkimage|bench/.*|integration/(cluster|volumes)|internal/(arch|boottime|config|kubeconf|longtest|netvolume))$'
# These take longest, so they begin first.
slow='/(faults|handover|semantics|lockmgr|lockmgr/etcdlock|lockmgr/kubelease|internal/embedetcd)$'
mapfile -t integration < <(list "$of_integration" | grep -E "$slow"; list "$of_integration" | grep -vE "$slow")
mapfile -t plain < <(list "$one_goroutine")
[ $extent = short ] || one_goroutine=${one_goroutine/'bench/.*|'/} # a long run races the benches too
mapfile -t others < <(list -v "$of_integration|$one_goroutine" | grep -E "$slow"; list -v "$of_integration|$one_goroutine|$slow")
# In a short run what is random runs with the race detector alone, but on some setups without it alone.
random='^Test(Differential|RandomInterrupts|InterruptAtEveryStep|FewESTALE|SavesBesideLinksAndOpens|LockFilesThatAreRemoved)$'
random_over='^Test(History|RangesUnderFaults|FaultsAtRandom|CreateChurn|ReplaceChurn|ManyWritersOnTwoMounts)$'
[ $extent = long ] || skip="$skip|$random|$random_over/^local$"
# So many steps in simulated time that the race detector makes most of a minute of them: a short run goes without.
simulated='^Test(FaultsAtEachStep|VisitorsWaitIsBounded)$'
mapfile -t with_raced < <(list '/integration/(faults|programs|semantics)$') # which have those

# The linker takes a tenth of the CPU time, and a fifth less of it with more memory. What is tested has what users have.
gotest() { # gotest ARG...
	GOGC=400 go test -exec 'env -u GOGC' "$@"
}
# With the race detector, as 'go test -race' by hand: it shares the cache.
raced=(-race -trimpath=false)
gotest_raced() { # gotest_raced ARG...
	CGO_ENABLED=1 gotest "${raced[@]}" "$@"
}

# -count=1: go does not notice that a program which a test runs has changed, and would take the result from its cache.
#
# Most tests wait: more packages than there are cores run side by side. Not many more: lock services that get no CPU for
# seconds refuse locks.
released() {
	stage 'without the race detector: integration, with real mounts, programs and faults; and all where nothing can race'
	go build -o "$work/lockfs" ./cmd/lockfs
	LOCKFS_TEST_PROGRAM=$work/lockfs gotest -count=1 "${vet[@]}" -p "$side_by_side" -parallel 3 -timeout $timeout -skip "$skip" "${integration[@]}" "${plain[@]}"
	[ $extent = long ] || gotest -count=1 "${vet[@]}" -timeout $timeout -run "$simulated" ./lockmgr
	stage 'the modules of their own'
	for module in integration/*/go.mod; do
		[ $extent = long ] || [ $module != integration/helm/go.mod ] || continue # it builds helm: 2 minutes of CPU
		LOCKFS_TEST_PROGRAM=$work/lockfs go -C "${module%/*}" test -count=1 "${vet[@]}" -timeout $timeout ./...
	done
}
with_detector() {
	stage 'with the race detector: every package but integration, and of integration what is random'
	CGO_ENABLED=1 go build "${raced[@]}" -o "$work/lockfs-race" ./cmd/lockfs # it takes 2.7 times as long
	export LOCKFS_TEST_PROGRAM=$work/lockfs-race
	if [ $extent = short ]; then
		gotest_raced -count=1 "${vet[@]}" -p 1 -parallel 4 -timeout $timeout -run "$random|$random_over" -skip '/^(leases|clients|keeping)$' "${with_raced[@]}" &
		local random=$!
		[ -z "$slow_machine" ] || wait $random
		gotest_raced "${vet[@]}" -p 2 -parallel 8 -timeout $timeout -skip "$simulated" "${others[@]}"
		wait $random
	else
		gotest_raced "${vet[@]}" -p 3 -parallel 8 -timeout $timeout "${others[@]}"
		gotest_raced -count=1 "${vet[@]}" -p 3 -parallel 4 -timeout $timeout -skip "$skip" "${integration[@]}"
	fi
}
# The cluster and the network volume wait more than they work. They have machines of their own, in namespaces.
elsewhere() {
	export TMPDIR=$work
	if [ -n "$kubernetes" ]; then
		part cluster scripts/cluster-test.sh smoke
	fi
	part volume scripts/volume-test.sh short
}
part() { # part NAME CMD...
	stage "the $1: see the end"
	if ! "${@:2}" >"$work/$1.log" 2>&1; then
		cat "$work/$1.log"
		return 1
	fi
	stage "the $1 has passed"
}

if [ $extent = short ] && [ -z "$slow_machine" ]; then
	begin elsewhere
	elsewhere=$job
fi
run released
run with_detector
if [ $extent = short ]; then
	if [ -n "$slow_machine" ]; then
		begin elsewhere
		elsewhere=$job
	fi
	stage "waits for the ${kubernetes:+cluster and the }network volume"
	await "$elsewhere"
	for log in "$work"/{cluster,volume}.log; do
		[ ! -e "$log" ] || { echo "-- the $(basename "$log" .log)"; tail -n 20 "$log"; }
	done
else
	stage 'a release, built twice'
	for name in once twice; do
		git clone -q . "$work/$name/lockfs"
		run env -C "$work/$name/lockfs" scripts/release.sh v0 "$work/$name/lockfs/dist"
	done
	cmp "$work"/{once,twice}/lockfs/dist/SHA256SUMS
	rm -rf "$work"/{once,twice}
fi
stage 'all of it has passed'
for what in "${left_out[@]}"; do
	echo "LEFT OUT: $what"
done
