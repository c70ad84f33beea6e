// Package netvolume knows what lockfs's promises ask of a network volume's client.
//
// A client that believes names, attributes or bytes for a time, or that gives up
// a write which may land later, breaks rules of docs/SEMANTICS.md, and nothing
// shows it. So a mount looks first:
//
//	the table of mounts ──► which volume it is, its options        ┐
//	the client's process ─► the options of its command line        ├─► Look ─► a Finding for
//	the volume itself ────► what it says of itself (.meta, .config)┘           each that is wrong
//
// What nobody can see from here is a Finding, too, that refuses nothing. A Finding
// is no proof that all is well: lockfs check-volume tries it.
package netvolume
