// Package serve serves a volume at a mountpoint, from the first checks to the release of
// the locks at the end.
//
//	checks ─► lock service ─► volume's identity ─► predecessors' sessions ended ─► session ─► view
//	                                                                                           │ ctx ends, or somebody unmounts
//	         lifeline removed ◄─ locks released, session ended ◄─ writes finished, unmounted ◄─┘
//
// A step that fails undoes the steps before it. A write that is still on its way to the
// volume cannot be undone in time: it keeps its lock until the lease ends.
package serve
