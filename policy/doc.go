// Package policy says which files of a volume are locked when they are opened
// for write, which need no lock, and which are read-only through the view.
//
// A policy is a list of rules, one a line:
//
//	GLOB ACTION [wait=DURATION] [scope=SCOPE] [keep=DURATION] [flock=local|cluster]
//
//	# logs that several programs append to, and sockets
//	*.log          nolock
//	/run/**        nolock
//	/etc/**        readonly
//	/db/**         lock wait=5m scope=pod
//
// The first rule whose glob matches a path decides. A path that no rule matches
// is locked, with the mount's wait, scope, keep and flock. Blank lines are ignored, and so is
// a comment: from a # that begins a word to the end of the line.
//
// # Globs
//
// A glob is matched with a path relative to the volume's root, byte by byte:
//
//	?        one character of a name, or one byte that is not part of a character
//	*        any part of one name, also of a name that begins with a dot
//	[a-z]    one character in the set; [^a-z] one character not in the set
//	**       between slashes: any number of directories; at the end: all that is below
//	\        the next character stands for itself: a space, a #, a *
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
// volume remembers (package volume) and every mount must have. It is made of the
// rules and not of their text: comments and spaces do not change it.
package policy
