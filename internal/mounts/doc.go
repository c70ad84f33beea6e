// Package mounts looks at mount points and at the directories of a mount
// before it is made.
//
// A FUSE mount whose daemon was killed stays in the mount table, and stat,
// and with it most of the os and path/filepath packages, fails on it with
// ENOTCONN. So a path is looked up by opening it with O_PATH, which asks the
// file system nothing: the kernel then says under which path and by which
// mount it was reached, mounts that cover others included.
//
// The checks are for clear messages, not for safety: between a check and the
// mount anybody may change what was checked.
package mounts
