package policy

// Flock says whom the flock(2) and fcntl(2) locks of a program exclude.
type Flock string

// The choices.
const (
	FlockLocal   Flock = "local"   // programs on this mount
	FlockCluster Flock = "cluster" // programs on all mounts of the volume
)

// Flocks lists the choices.
var Flocks = []Flock{FlockLocal, FlockCluster}

// Other is the other choice.
func (f Flock) Other() Flock {
	if f == FlockCluster {
		return FlockLocal
	}
	return FlockCluster
}
