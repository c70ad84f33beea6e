package fs

// files is the backing's files as the kernel knows them, and as they are: which node
// has which name now. It takes no locks, and asks nobody but the volume.
type files struct {
	backing  backing
	nodes    *nodes
	glimpses glimpses
}
