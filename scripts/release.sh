#!/usr/bin/env bash
# What a release is made of, into DIR: release.sh VERSION DIR. The same commit makes the same bytes, anywhere.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?usage: release.sh VERSION DIR} dir=${2:?usage: release.sh VERSION DIR}
image=ghcr.io/lockfs/lockfs:$version
mkdir -p "$dir"
for arch in amd64 arm64; do
	GOOS=linux GOARCH=$arch CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$version" -o "$dir/lockfs-linux-$arch" ./cmd/lockfs
	go run ./deploy/sbom "$dir/lockfs-linux-$arch" >"$dir/lockfs-linux-$arch.spdx.json"
done
go run ./deploy/mkimage -oci -arch amd64,arm64 "$dir/lockfs-image.oci.tar" "$image" /usr/local/bin/lockfs "$dir/lockfs-linux-ARCH=/usr/local/bin/lockfs"
(cd "$dir" && sha256sum lockfs-* >SHA256SUMS)
cat "$dir/SHA256SUMS"
