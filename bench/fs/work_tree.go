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

// copyTree copies a tree within the system.
func copyTree(w *work) error {
	return w.scratch(func(dir string) error {
		return w.program(true, "cp", "-r", w.path(treeDir), dir)
	})
}

// find stats each file of a tree that was not looked at for longer than any of the systems
// trusts its caches.
func find(w *work) error {
	const believed = time.Second
	time.Sleep(believed + believed/10)
	return w.program(true, "find", w.path(treeDir), "-printf", "%s\n")
}

// gitClone copies a pack and checks it out. The source is outside, or git would
// make links on ext4.
func gitClone(w *work) error {
	return w.scratch(func(dir string) error {
		return w.program(true, "git", "clone", "-q", "--no-hardlinks", filepath.Join(w.Shared, treeGit), dir+"/clone")
	})
}

// removeTree removes a tree that was just made.
func removeTree(w *work) error {
	return w.scratch(func(dir string) error {
		if err := w.program(false, "tar", "-xf", filepath.Join(w.Shared, treeTar), "-C", dir); err != nil {
			return err
		}
		return w.program(true, "rm", "-rf", dir)
	})
}
