package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// mountFlags are those of the systems that are 'lockfs mount' with its embedded etcd, or the lock
// service that -mount names.
var mountFlags = map[string][]string{
	"nolock":     {"--rule", "** nolock"},
	"etcd":       {"--keep", "0"},
	"kept":       nil,
	"supervised": {"--supervise"},
}

// inEtcd reports whether a system has its locks in an etcd of its own.
func inEtcd(system string) bool {
	return system == "etcd" || system == "kept" || system == "supervised"
}

func (b *bench) buildLockfs(ctx context.Context) (string, error) {
	bin := filepath.Join(b.tmp, "lockfs.bin")
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, "github.com/lockfs/lockfs/cmd/lockfs")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build lockfs (run this inside the module): %w: %s", err, out)
	}
	return bin, nil
}

func (s *system) mount(ctx context.Context, b *bench) (*exec.Cmd, error) {
	bin, err := b.buildLockfs(ctx)
	if err != nil {
		return nil, err
	}
	// A machine that stands still for some seconds is slow, and fails no row. A lock service that stays
	// knows the volumes of the run before.
	args := []string{"mount", "--name", filepath.Base(b.top) + "-" + s.name, "--wait", "-1", "--name-wait", "2m", s.backing, s.dir}
	args = slices.Concat(args, mountFlags[s.name], strings.Fields(b.opts.mount))
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), "LOCKFS_STATE_DIR="+s.backing+".state")
	return cmd, nil
}
