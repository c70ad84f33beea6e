package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// disk is one directory in memory, mounted twice: what fails on it is no matter of
// network volumes.
func disk(l *lab) (clients []string, err error) {
	dir := l.mkdir("disk")
	for _, name := range []string{"a", "b"} {
		client := l.mkdir("client-" + name)
		if err := unix.Mount(dir, client, "", unix.MS_BIND, ""); err != nil {
			return nil, fmt.Errorf("mount %s: %w", client, err)
		}
		clients = append(clients, client)
	}
	return clients, nil
}
