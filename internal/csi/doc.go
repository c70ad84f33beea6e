// Package csi is the CSI driver lockfs.io: it gives pods a view, or a directory in it, at any path.
//
// The node service publishes a bind mount of a view that the daemon of the node serves. It keeps no
// state but the mount table. When the daemon has died and made a new view, the driver mounts that
// in place of the old one, also in containers that run (repair.go). docs/adr/0055 says why.
//
// The controller makes a directory for each claim, through a view.
package csi
