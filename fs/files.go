package fs

// files relates the kernel's nodes to the files of the backing: which name leads to which
// file now. It takes no locks.
type files struct {
	backing  backing
	nodes    *nodes
	glimpses glimpses
}
