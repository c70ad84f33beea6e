#!/usr/bin/env bash
# The suite on network volumes: volume-test.sh short (one volume, under 2 minutes) | all
set -euo pipefail
cd "$(dirname "$0")/.."
volumes() { go run ./integration/volumes "$@"; }
case ${1:?usage: volume-test.sh short|all} in
short)
	volumes -run '^(TestManyWritersOnTwoMounts|TestNamesMadeElsewhere|TestHolderReplacesItsFile|TestVolumeClientMountedAgain)$' gluster
	;;
all)
	# Not smb: lockfs refuses it, and it fails.
	volumes disk gluster ceph juicefs nfs3 nfs4 cephkernel
	;;
*)
	echo "usage: volume-test.sh short|all" >&2
	exit 2
	;;
esac
