// Package arch holds the rules of the structure, as tests: who may import whom,
// and that every package says what it is for.
//
//	cmd/lockfs ─► fs ─► lockmgr ─► renew ─► internal/boottime
//	     │                 ▲
//	     └─► lockmgr/etcdlock, internal/embedetcd, internal/volume, …
package arch
