package embedetcd

// EndpointOf returns the endpoint of the lock service in a state directory. Nobody may be
// serving it.
func EndpointOf(dir string) string { return "unix://" + socketPath(dir) }
