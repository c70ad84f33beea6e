package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
)

// The files of each system.
const (
	readFile  = "read"  // for reads that miss the view's cache
	writeFile = "write" // overwritten in place
	hotFile   = "hot"   // for reads that hit the view's cache
	smallDir  = "small" // smallFiles files of one page
	treeDir   = "tree"  // directories of sources
)

// The files beside the systems, for all of them.
const (
	treeTar = "tree.tar"
	treeGit = "tree.git"
)

const (
	page       = 4 << 10
	smallFiles = 100
)

// sizes is how much there is to work on.
type sizes struct {
	Data, Hot      int64 // bytes
	Dirs, FilesPer int   // of the tree
}

func sizesFor(short bool) sizes {
	if short {
		return sizes{Data: 4 << 20, Hot: 2 << 20, Dirs: 5, FilesPer: 10}
	}
	return sizes{Data: 64 << 20, Hot: 16 << 20, Dirs: 50, FilesPer: 25}
}

// fill makes a system's files below its mount, before it is mounted.
func (z sizes) fill(dir, tree string) error {
	for name, size := range map[string]int64{readFile: z.Data, writeFile: z.Data, hotFile: z.Hot} {
		if err := os.WriteFile(filepath.Join(dir, name), noiseBytes(size), 0o644); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(dir, smallDir), 0o755); err != nil {
		return err
	}
	for i := range smallFiles {
		if err := os.WriteFile(small(dir, i), noiseBytes(page), 0o644); err != nil {
			return err
		}
	}
	return os.CopyFS(filepath.Join(dir, treeDir), os.DirFS(tree))
}

func small(dir string, i int) string {
	return filepath.Join(dir, smallDir, fmt.Sprintf("f%03d", i%smallFiles))
}

// noiseBytes returns the same bytes for each system and run.
func noiseBytes(size int64) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // never fails
	return b
}

// plant makes a tree like sources: many small files and a few large ones, three levels deep.
func (z sizes) plant(dir string) error {
	r := rand.New(rand.NewPCG(1, 2))
	data := noiseBytes(1 << 20)
	for d := range z.Dirs {
		sub := filepath.Join(dir, fmt.Sprintf("pkg%d", d%5), fmt.Sprintf("d%02d", d))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return err
		}
		for i := range z.FilesPer {
			size := 500 + r.IntN(8<<10)
			if i == 0 && d%5 == 0 {
				size = 100<<10 + r.IntN(400<<10)
			}
			at := r.IntN(len(data) - size)
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("f%02d.go", i)), data[at:at+size], 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// pack makes an archive and a repository of the tree, if the programs are there.
func pack(ctx context.Context, tmp, tree string) error {
	run := func(env []string, name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			return nil // its rows are skipped
		}
		if err != nil {
			return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
		}
		return nil
	}
	if err := run(nil, "tar", "-cf", filepath.Join(tmp, treeTar), "-C", tree, "."); err != nil {
		return err
	}
	repo := filepath.Join(tmp, treeGit)
	for _, args := range [][]string{
		{"init", "-q", "--bare", repo},
		{"--git-dir", repo, "--work-tree", tree, "add", "."},
		{"--git-dir", repo, "--work-tree", tree, "commit", "-q", "-m", "tree"},
		{"--git-dir", repo, "gc", "-q"},
	} {
		if err := run(gitEnv, "git", args...); err != nil {
			return err
		}
	}
	return nil
}

// gitEnv ignores the user's settings.
var gitEnv = []string{
	"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_COUNT=1",
	"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
	"GIT_AUTHOR_NAME=b", "GIT_AUTHOR_EMAIL=b@b", "GIT_COMMITTER_NAME=b", "GIT_COMMITTER_EMAIL=b@b",
}
