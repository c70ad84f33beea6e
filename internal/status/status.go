// Package status lets commands of a machine ask its daemons how their volumes are.
//
//	daemon:  Listen(DIR) ──► DIR/status/ID, a unix socket          answers from memory, whatever
//	command: Ask(DIR)    ──► each socket there, all at once        the volume and the lock service do
//
// Only root and the user of a daemon can reach it: the directory of the sockets is that
// user's alone. A daemon that was killed leaves a socket, which refuses: the next one
// removes it. A daemon that is stopped takes the question, and does not answer.
package status

import "time"

// Daemon is a daemon's answer.
type Daemon struct {
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Views   []View    `json:"views"`
	Error   string    `json:"error,omitempty"` // it did not answer; only PID is known
}

// States of a View.
const (
	Served    = "served"
	Trouble   = "trouble"    // something is wrong; other views are served
	NotServed = "not served" // also: not yet
)

// View is a volume at its mountpoint, served or not.
type View struct {
	Volume      string   `json:"volume"` // NAMESPACE/NAME; "configuration" is the daemon's file
	State       string   `json:"state"`
	Error       string   `json:"error,omitempty"`
	BrokenRules []string `json:"broken_rules,omitempty"`
	Source      string   `json:"source,omitempty"`
	Mountpoint  string   `json:"mountpoint,omitempty"`
	LockService string   `json:"lock_service,omitempty"`
	Session     *Session `json:"session,omitempty"` // this and the rest: while it is mounted
	Locks       *Locks   `json:"locks,omitempty"`
	Files       *Files   `json:"files,omitempty"`

	Takeovers *Takeovers `json:"takeovers,omitempty"` // unless there were none
}

// Takeovers are those of a view since it was mounted. All but Count is of the last one.
type Takeovers struct {
	Count   int     `json:"count"`
	Ago     float64 `json:"seconds_ago"`
	Took    float64 `json:"took_seconds"`
	Files   int     `json:"open_files"`
	Locks   int     `json:"locks"`
	Waiting int     `json:"waiting"`
	Deaths  int     `json:"after_death"`    // how many of Count were from a daemon that had died
	Died    string  `json:"died,omitempty"` // how the former daemon died; "": it lives, or has ended
}

// Session is the state of a mount's sessions.
type Session struct {
	State    string  `json:"state"` // the worst of all sessions
	TTL      float64 `json:"ttl_seconds"`
	Answered float64 `json:"answered_seconds_ago"`
	Took     float64 `json:"answer_took_seconds"`
	Error    string  `json:"error,omitempty"` // the last renewal's, if it failed
}

// Locks counts the locks of a mount, and requests for them.
type Locks struct {
	Held    int    `json:"held"`
	Waiting int    `json:"waiting"`
	Longest []Wait `json:"longest_waits,omitempty"`
}

// Wait is a request that waits for another owner.
type Wait struct {
	Path    string  `json:"path"`
	Seconds float64 `json:"seconds"`
	PID     int     `json:"pid,omitempty"`
	Command string  `json:"command,omitempty"`
	Pod     string  `json:"pod,omitempty"`
}

// Files counts open files of a view, and the kernel's requests to the volume.
type Files struct {
	Open     int `json:"open"`
	UnderWay int `json:"requests_under_way"`
	Waiting  int `json:"requests_waiting"` // for those under way
}
