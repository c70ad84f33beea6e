package fs

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// An NFS server does not know open files, so its client renames a file that is removed while open
// to .nfsXXXX. Our descriptors would make that the rule: a save by rename would first remove the
// name, and rm -r would find the directory not empty.
//
// So a node closes its descriptor before its file loses a name, unless a program has the file open
// or is about to. The next use opens the file by its name, if it is the same file (ADR 0029).

func (f *files) letsGo(n *node) bool { return !n.dir && f.backing.on(n.inode.dev).renamesRemoved }

func (f *files) letGo(file *node) {
	if !f.letsGo(file) {
		return
	}
	nodes := f.nodes.ofFile(file)
	for _, n := range nodes {
		if n.handles.Load() > 0 {
			return
		}
	}
	for _, n := range nodes {
		if !n.certain || !n.enter() {
			continue
		}
		if n.descriptor.TryLock() {
			if n.fd >= 0 && n.handles.Load() == 0 && time.Now().UnixNano() >= n.awaited.Load() {
				fd := n.fd
				n.fd = -1
				f.nodes.noteFD(n)
				unix.Close(fd)
			}
			n.descriptor.Unlock()
		}
		n.leave()
	}
}

func (t *nodes) ofFile(n *node) []*node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(n.nodes)
}

// with runs do on a node's descriptor. do must not call with. ESTALE: no name leads to the file.
func (f *files) with(n *node, do func(fd int) error) error {
	if !f.letsGo(n) {
		return byDescriptor(do(n.fd))
	}
	n.descriptor.RLock()
	for n.fd < 0 {
		n.descriptor.RUnlock()
		if err := f.findAgain(n); err != nil {
			return err
		}
		n.descriptor.RLock()
	}
	defer n.descriptor.RUnlock()
	return byDescriptor(do(n.fd))
}

// keepForOpen keeps the descriptor of a node that a second try is about to open, if it has one.
func (f *files) keepForOpen(n *node) bool {
	n.awaited.Store(time.Now().Add(parkFor).UnixNano())
	return f.with(n, func(int) error { return nil }) == nil
}

// hasOpen makes a node's descriptor anew from fd, an open descriptor of the file, which may have no
// name by now.
func (f *files) hasOpen(n *node, fd int) {
	n.awaited.Store(0)
	n.descriptor.RLock()
	kept := n.fd >= 0
	n.descriptor.RUnlock()
	if kept {
		return
	}
	n.descriptor.Lock()
	defer n.descriptor.Unlock()
	if n.fd < 0 {
		if path, err := reopen(fd, unix.O_PATH); err == nil {
			n.fd = path
			f.nodes.noteFD(n)
		}
	}
}

func (f *files) findAgain(n *node) error {
	n.descriptor.Lock()
	defer n.descriptor.Unlock()
	if n.fd >= 0 {
		return nil
	}
	var failed error
	for _, d := range f.nodes.names(n) {
		if !d.dir.enter() {
			continue
		}
		fd, st, err := f.backing.lookAt(d.dir.fd, d.name, asUsual)
		d.dir.leave()
		if err == nil && inodeOf(&st) == n.inode {
			n.fd = fd
			f.nodes.noteFD(n)
			return nil
		}
		if err == nil {
			unix.Close(fd)
		} else if err != unix.ENOENT {
			failed = err
		}
	}
	if failed != nil {
		return failed
	}
	return unix.ESTALE
}
