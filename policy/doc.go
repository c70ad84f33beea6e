// Package policy says which files of a volume are locked when they are opened
// for write, which need no lock, and which are read-only through the view.
//
// A policy is a list of rules, one a line:
//
//	GLOB ACTION [wait=DURATION] [scope=SCOPE]
//
//	# logs that several programs append to, and sockets
//	*.log          nolock
//	/run/**        nolock
//	/etc/**        readonly
//	/db/**         lock wait=5m scope=pod
//
// The first rule whose glob matches a path decides; a path that none matches
// is locked, by the terms of the mount. Blank lines do not count, nor what
// stands behind a # that begins a word.
//
// # Globs
//
// A glob is matched with a path relative to the volume's root, byte by byte:
//
//   - any part of one name, also of one that begins with a dot
//     ?        one character of a name, or one byte that is none
//     [a-z]    one character of a class; [^a-z] one that is not in it
//     **       between slashes: any number of directories; at the end: all that is below
//     \        takes the next character for itself: a space, a #, a *
//
// A glob without a slash matches a name at any depth, as in .gitignore. Any
// other counts from the volume's root, with a leading slash or without one. A
// glob that matches a directory does not match what is in it: that is dir/**,
// which does not match dir itself. The root matches no glob.
//
// # One policy for all mounts
//
// Two mounts with different policies would not exclude each other: one takes
// the lock that the other does without. So a policy has a digest, which the
// volume remembers (package volume) and every mount must bring along. It is of the rules and not
// of their text: comments and spaces do not change it.
package policy
