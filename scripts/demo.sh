#!/usr/bin/env bash
# Two views of one directory, as two nodes would have them, and unmodified
# programs that write through both at once: first on the bare directory, then
# through lockfs. Prints what was kept, and who holds and who waits.
set -euo pipefail

lockfs=$(realpath "${1:?usage: demo.sh LOCKFS}")
# Short: the embedded etcd listens on a unix socket below it.
work=$(mktemp -d /tmp/lockfs-demo.XXXXXX)
export LOCKFS_STATE_DIR=$work/state
mkdir "$work"/{bare,shared,node1,node2}
daemons=()

cleanup() {
	trap - EXIT INT TERM
	local p
	for p in "${daemons[@]}"; do kill -TERM "$p" 2>/dev/null || true; done
	for p in "${daemons[@]}"; do wait "$p" 2>/dev/null || true; done
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

fail() {
	echo "demo: $*" >&2
	exit 1
}

# eventually CMD...: waits until CMD succeeds.
eventually() {
	local deadline=$((SECONDS + 180)) # a busy machine takes long
	until "$@"; do
		((SECONDS < deadline)) || fail "timed out: $*"
		sleep 0.05
	done
}

# --- the programs, each run on two directories at once -----------------------

appends=100 reports=20 lines=20 counts=100 inserts=25

append_log() { for i in $(seq $appends); do echo "$2 $i" >>"$1/app.log"; done; }
kept_log() { sort -u "$1/app.log" | wc -l; }

# A report is many lines written under one open: it is kept if it is in one piece.
write_reports() {
	for i in $(seq $reports); do
		{ for j in $(seq $lines); do printf '%s %s %s %(%T)T\n' "$2" "$i" "$j" -1; done; } >>"$1/report.txt"
	done
}
kept_reports() {
	awk -v n=$lines '{
		if ($3 == 1) { who = $1 " " $2; next_line = 2 }
		else if ($1 " " $2 == who && $3 == next_line) { if (next_line++ == n) kept++ }
		else who = ""
	} END { print kept + 0 }' "$1/report.txt"
}

# Read, add one, write back, under one open.
count_up() {
	for i in $(seq $counts); do
		perl -e 'open(F, "+<", shift) or die "open: $!\n"; $n = <F>; seek(F, 0, 0); print F $n + 1, "\n"; close(F) or die "close: $!\n"' "$1/counter"
	done
}
kept_counts() { cat "$1/counter"; }

insert_rows() {
	for i in $(seq $inserts); do
		sqlite3 -cmd '.timeout 60000' "$1/rows.db" "INSERT INTO rows VALUES ('$2 $i')"
	done
}
kept_rows() { sqlite3 "$1/rows.db" 'PRAGMA integrity_check; SELECT count(*) FROM rows' | sed -n 's/^[0-9][0-9]*$/&/p'; }

# both PROGRAM DIR1 DIR2: runs PROGRAM on both at once.
both() {
	"$1" "$2" node1 & local one=$!
	"$1" "$3" node2 & local two=$!
	wait $one || fail "$1 failed on $2"
	wait $two || fail "$1 failed on $3"
}

prepare() {
	echo 0 >"$1/counter"
	: >"$1/app.log"
	: >"$1/report.txt"
	sqlite3 "$1/rows.db" 'CREATE TABLE rows (t TEXT)'
}

# run_all DIR1 DIR2: sets kept, one number a program.
run_all() {
	prepare "$1"
	both append_log "$1" "$2"
	both write_reports "$1" "$2"
	both count_up "$1" "$2"
	both insert_rows "$1" "$2"
	kept=("$(kept_log "$1")" "$(kept_reports "$1")" "$(kept_counts "$1")" "$(kept_rows "$1")")
}

# --- the run -----------------------------------------------------------------

echo "Two writers on the bare directory ..."
run_all "$work/bare" "$work/bare"
bare=("${kept[@]}")

for node in node1 node2; do
	"$lockfs" mount --name demo --node $node --wait -1 --name-wait 1m "$work/shared" "$work/$node" 2>"$work/$node.log" &
	daemons+=($!)
	p=$!
	mounted() { grep -q " $work/$node fuse.lockfs " /proc/mounts || ! kill -0 $p 2>/dev/null; }
	eventually mounted
	kill -0 $p 2>/dev/null || fail "mount failed: $(cat "$work/$node.log")"
done
echo "The same through lockfs, one view each ..."
run_all "$work/node1" "$work/node2"

expected=($((2 * appends)) $((2 * reports)) $((2 * counts)) $((2 * inserts)))
program=('echo line >> log' '{ 20 lines; } >> report' 'counter: read, add, write' 'sqlite3 INSERT')
printf '\n%-28s %9s %20s %20s\n' program expected 'kept on the bare dir' 'kept through lockfs'
lost=0
for i in "${!program[@]}"; do
	printf '%-28s %9d %20d %20d\n' "${program[i]}" "${expected[i]}" "${bare[i]}" "${kept[i]}"
	[ "${kept[i]}" = "${expected[i]}" ] || lost=1
done
cat <<'EOF'

(The bare directory is a local disk under one kernel, which keeps single O_APPEND writes
and sqlite3's own locks apart. On a network volume those are lost as well.)

One side holds a file, the other waits for it; lockfs ls says who:
EOF

(
	exec 9>>"$work/node1/held.log"
	: >"$work/holding"
	eventually test -e "$work/let-go"
	echo "written by the holder" >&9
) &
holder=$!
eventually test -e "$work/holding"
echo "written by the waiter" >>"$work/node2/held.log" &
waiter=$!
waiting() { "$lockfs" ls "$work/node1" | grep -q ' waiting '; }
eventually waiting
"$lockfs" ls "$work/node1"
: >"$work/let-go"
wait $holder $waiter
printf '\nThe holder closed the file, and the waiter wrote behind it:\n'
cat "$work/node1/held.log"

[ $lost = 0 ] || fail "something was lost through lockfs"
