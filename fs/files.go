package fs

// files maps the kernel's nodes to the files of the backing. It takes no locks.
type files struct {
	backing  backing
	nodes    *nodes
	glimpses glimpses
}
