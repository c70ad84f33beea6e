#!/usr/bin/env bash
# Installs the programs that 'make demo' and 'make test' use: Debian packages
# if we are root on a Debian, else it says what to install.
set -euo pipefail

# Debian keeps PostgreSQL's programs out of the way.
for dir in /usr/lib/postgresql/*/bin; do
	PATH=$PATH:$dir
done

# program:package
need=(fusermount3:fuse3 sqlite3:sqlite3 perl:perl gcc:gcc git:git rsync:rsync initdb:postgresql lockfile:procmail strace:strace)
missing=()
for n in "${need[@]}"; do
	command -v "${n%%:*}" >/dev/null || missing+=("${n##*:}")
done
for module in filelock portalocker pip; do
	/usr/bin/python3 -c "import $module" 2>/dev/null || missing+=("python3-$module")
done
if ! command -v go >/dev/null; then
	echo "Go is missing: install Go $(sed -n 's/^go //p' go.mod) or newer from https://go.dev/dl" >&2
	exit 1
fi
if [ "${#missing[@]}" -gt 0 ]; then
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		export DEBIAN_FRONTEND=noninteractive
		if [ ! -e /etc/postgresql-common ]; then # else it is not for us to say
			mkdir -p /etc/postgresql-common/createcluster.d
			echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.d/no-main-cluster.conf
		fi
		apt-get update -q >/dev/null
		apt-get install -q -y --no-install-recommends "${missing[@]}" libc6-dev >/dev/null
	else
		echo "Missing programs. Install these packages (named as on Debian), as root: ${missing[*]}" >&2
		exit 1
	fi
fi
if [ ! -e /dev/fuse ]; then
	echo "/dev/fuse is missing: run 'modprobe fuse' as root, or give the container --device /dev/fuse" >&2
	exit 1
fi
