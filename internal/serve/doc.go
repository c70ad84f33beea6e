// Package serve serves a volume at a mountpoint: from the checks that come
// before anything is started to the locks that are let go at the end.
//
//	checks ─► lock service ─► volume's identity ─► predecessors' sessions ended ─► session ─► view
//	                                                                                           │ ctx ends, or somebody unmounts
//	         lifeline removed ◄─ locks released, session ended ◄─ writes finished, unmounted ◄─┘
//
// Whatever fails on the way takes back what was there before it. What cannot be
// taken back in time, a write that is still on its way to the volume, keeps its
// lock until the lease ends.
package serve
