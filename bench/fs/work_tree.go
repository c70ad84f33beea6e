package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

func untar(w *work) error {
	return w.scratch(func(dir string) error {
		return w.program(true, "tar", "-xf", filepath.Join(w.Shared, treeTar), "-C", dir)
	})
}

func copyTree(w *work) error {
	return w.scratch(func(dir string) error {
		return w.program(true, "cp", "-r", w.path(treeDir), dir)
	})
}

// find stats files that were not looked at for longer than any system trusts its caches.
func find(w *work) error {
	const believed = time.Second
	time.Sleep(believed + believed/10)
	return w.program(true, "find", w.path(treeDir), "-printf", "%s\n")
}

// gitClone clones from outside the system, or git would make links on ext4.
func gitClone(w *work) error {
	return w.scratch(func(dir string) error {
		return w.program(true, "git", "clone", "-q", "--no-hardlinks", filepath.Join(w.Shared, treeGit), dir+"/clone")
	})
}

func removeTree(w *work) error {
	return w.scratch(func(dir string) error {
		if err := w.program(false, "tar", "-xf", filepath.Join(w.Shared, treeTar), "-C", dir); err != nil {
			return err
		}
		return w.program(true, "rm", "-rf", dir)
	})
}

// install makes packages in a staging directory and renames each into place, as npm does, and
// then writes a file for all of them.
func install(w *work) error {
	return w.scratch(func(dir string) error {
		data := noiseBytes(4 << 10)
		w.begin()
		defer w.end()
		for p := range w.Sizes.Dirs {
			w.ops++
			staged := filepath.Join(dir, ".staging", fmt.Sprint("package-", p))
			if err := os.MkdirAll(filepath.Join(staged, "lib"), 0o755); err != nil {
				return err
			}
			for f := range w.Sizes.FilesPer {
				if err := os.WriteFile(filepath.Join(staged, "lib", fmt.Sprint(f, ".js")), data, 0o644); err != nil {
					return err
				}
			}
			if err := os.Rename(staged, filepath.Join(dir, fmt.Sprint("package-", p))); err != nil {
				return err
			}
		}
		return os.WriteFile(filepath.Join(dir, ".package-lock.json"), data, 0o644)
	})
}
