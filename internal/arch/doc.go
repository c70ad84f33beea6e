// Package arch holds the rules of the structure, as tests: who may import whom,
// and that every package says what it is for.
//
//	cmd/lockfs ─► internal/serve ─► fs ─► lockmgr ─► renew ─► internal/boottime
//	     │              │                    ▲
//	     │              └─► internal/volume, internal/mounts, …
//	     └─► lockmgr/etcdlock, internal/embedetcd
package arch
