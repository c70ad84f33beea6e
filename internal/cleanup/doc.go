// Package cleanup removes from a machine what lockfs has left there: dead views, guarded
// mountpoints, the lifelines of dead mounts, and directories.
//
// It goes through no view, and removes nothing that others may have put there:
//
//   - While a daemon lives nothing is done. The mount table says so, and so do the
//     lifelines, which also cover views in other mount namespaces.
//   - Dead views are unmounted lazily: nobody asks what is below them.
//   - The walk crosses no mount (openat2, RESOLVE_NO_XDEV) and follows no link.
//   - Of files, only dead lifelines are removed; of directories, empty ones, by
//     rmdir, which the kernel refuses for what holds something, or has something
//     mounted on it since.
package cleanup
