package embedetcd

// EndpointOf is the endpoint of the lock service in a state directory, for
// those who only ask it something; nobody may be serving it.
func EndpointOf(dir string) string { return "unix://" + socketPath(dir) }
