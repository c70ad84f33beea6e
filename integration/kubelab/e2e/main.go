// Command e2e is here for its go.mod: Kubernetes' own end-to-end tests, and the program in their images.
package main

import (
	_ "k8s.io/kubernetes/test/e2e"
)

func main() {}
