package main

import (
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
