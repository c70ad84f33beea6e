// Package metrics is what Prometheus is told of the volumes that a daemon serves.
// docs/METRICS.md lists it.
//
//	lockmgr ──Event──► Volume ──┐
//	lockmgr.Stats, fs.Stats ────┴─ when it is scraped ─► Registry ─► /metrics
//
// What is told of requests is counted here, with nothing between them but
// atomic additions; READ and WRITE are counted in the view itself, which is asked.
// A volume that is mounted again goes on counting where it was, or begins with
// zero where the view counts: Prometheus takes both.
package metrics
