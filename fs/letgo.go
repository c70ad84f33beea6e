package fs

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A client of NFS gives a file that loses its name while somebody has a descriptor of
// it another name, .nfsXXXX, until that is closed: the server knows of no open files.
// Our descriptors of what the kernel merely knows would make that the rule. A save by
// rename would then take the name away first, so that readers find none, and rm -r
// would meet a directory that is not empty. So a node lets go of its descriptor when
// its file is about to lose a name, unless somebody has the file open, as without a
// view. Whoever needs the descriptor again opens the file by its name, if it is that
// file still. Nor is it let go of while a program is between its second look and its
// open: that finds the file that the look has found, and is not sent to look again.

// letGo closes the descriptors of a file's nodes, if nobody uses them.
func (f *files) letGo(file *node) {
	if !f.nodes.letsGo {
		return
	}
	nodes := f.nodes.ofFile(file)
	for _, n := range nodes {
		if n.handles.Load() > 0 {
			return
		}
	}
	for _, n := range nodes {
		if n.dir || !n.certain || !n.enter() {
			continue
		}
		if n.descriptor.TryLock() {
			if n.fd >= 0 && n.handles.Load() == 0 && time.Now().UnixNano() >= n.awaited.Load() {
				unix.Close(n.fd)
				n.fd = -1
			}
			n.descriptor.Unlock()
		}
		n.leave()
	}
}

// ofFile returns the nodes of a node's file.
func (t *nodes) ofFile(n *node) []*node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(n.nodes)
}

// with runs do with a node's descriptor, and is not called by do. ESTALE: the file is
// no more, or the descriptor was let go and the file is not found.
func (f *files) with(n *node, do func(fd int) error) error {
	if n.dir || !f.nodes.letsGo {
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

// keepForOpen keeps the descriptor of a node that is about to be opened by who has looked for
// the second time. It reports whether the node has one.
func (f *files) keepForOpen(n *node) bool {
	if n == nil {
		return false
	}
	n.awaited.Store(time.Now().Add(parkFor).UnixNano())
	return f.with(n, func(int) error { return nil }) == nil
}

// hasOpen gives a node its descriptor back, if it was let go while the file was opened
// as fd. There need not be a name any more by which to find it again.
func (n *node) hasOpen(fd int) {
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
		}
	}
}

// findAgain opens the file of a node by one of its names.
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
