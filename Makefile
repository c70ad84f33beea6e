# lockfs: the two commands are 'make demo' and 'make test'.

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
IMAGE       ?= ghcr.io/lockfs/lockfs:v0.1.0
# Tests that need much that lockfs does not: their modules are their own.
MODULES     := $(dir $(wildcard integration/*/go.mod))
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null)

# All that is built has the same flags, so that a package is compiled once. Without the paths of this clone in it, it is
# in the cache for another clone as well.
export CGO_ENABLED := 0
export GOFLAGS     := $(filter-out -trimpath,$(shell go env GOFLAGS 2>/dev/null)) -trimpath

.PHONY: build image demo test test-long cluster-test volume-test bench bench-fs bench-locks deps apiserver lint

# The program is one static binary.
build:
	go build -ldflags "-s -w -X main.version=$(VERSION)" -o bin/lockfs ./cmd/lockfs

# The container image, without Docker: bin/lockfs-image.tar is for 'docker load', 'ctr images import',
# 'kind load image-archive' or 'skopeo copy docker-archive:bin/lockfs-image.tar docker://…'.
image: build
	go run ./deploy/mkimage bin/lockfs-image.tar $(IMAGE) /usr/local/bin/lockfs bin/lockfs=/usr/local/bin/lockfs

# Two views of one directory, real programs on both at once, what is lost and what is kept.
demo: deps build
	scripts/demo.sh bin/lockfs

# Everything once: the linters, the unit tests, the integration tests on real mounts, and a look at a real cluster
# and a real network volume. Without a Kubernetes to build: make test KUBERNETES=no
test: deps
	@scripts/test.sh short

# Everything that repeats something: random histories and faults, many seeds, and tests on each lock service and each
# kind of volume again. Each random test goes on for $$LOCKFS_TEST_LONG, by default 2m.
test-long: deps
	@scripts/test.sh long

# Real clusters of 2 and 3 nodes, both lock services, every fault: as root, some 20 minutes, and 5 to build Kubernetes
# once, into $$KUBELAB_BIN.
cluster-test:
	scripts/cluster-test.sh full

# Real network volumes, with a server and two clients each: as root, an hour.
volume-test:
	scripts/volume-test.sh all

# What lockfs costs: docs/PERFORMANCE.md. Flags are those of one: make bench-locks BENCH='-rows handoff -rounds 3'.
bench: bench-fs bench-locks

# The view, beside ext4, go-fuse's loopback and bindfs: as root, some ten minutes.
bench-fs:
	go run ./bench/fs $(BENCH)

# Locks in etcd, beside bare Txns, etcd's Mutex, a lease for each lock, and Leases of Kubernetes if 'make apiserver'
# was run: some fourteen minutes.
bench-locks:
	go run ./bench/locks $(BENCH)

lint:
	@files=$$(gofmt -l .); [ -z "$$files" ] || { echo "run gofmt -w on these files:" $$files >&2; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...
	@set -e; for module in $(MODULES); do echo "in $$module"; go -C $$module vet ./...; (cd $$module && go run $(STATICCHECK) ./...); done

# Installs what the demo and the tests need, or says what to install.
deps:
	@scripts/deps.sh

# A kube-apiserver for the tests of locks in Leases: built once, in 5 minutes, unless $$KUBECONFIG names one.
apiserver:
	@[ -n "$$KUBECONFIG" ] || integration/kubelab/build.sh programs
