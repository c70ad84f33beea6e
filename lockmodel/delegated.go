package main

// The delegated model: delegations of directories. A mount has an entry D of a directory, and
// its programs open files below it without entries of their own. A request of another mount
// recalls D, and puts nothing while it stands. The mount puts entries for what is open, and then
// deletes D. There are the directories d and d/e with a file each: d/f and d/e/g. Programs open
// the files, or try to rename d/e, which the mount with D of d decides by itself too.

const (
	delegMounts   = 3
	delegDirs     = 2
	delegFiles    = 3 // 0 is d/f, 1 is d/e/g, 2 is the directory d/e, to be renamed
	delegPrograms = 4
)

type delegWorld struct {
	programs []delegProgram
	takes    [delegMounts][delegDirs]int8 // how often a mount may take D
	ends     int8                         // how many sessions end
	mut      string
}

// delegProgram is constant: on which mount a program wants which file, and how often.
type delegProgram struct {
	mount int
	file  int
	opens int8
}

// delegDir is a directory on a mount, and the mount's entry D of it in the service.
type delegDir struct {
	rev      int8 // of D in the service, 0: none
	phase    int8
	token    int8 // the revision of D that the mount knows
	known    int8 // the newest revision at which it stood, as far as the mount knows
	n        int8 // opens below D since
	taken    int8 // how often it was taken
	event    bool // a recall that the watch has still to deliver
	recalled bool
}

// What a mount does about a directory; nothing is 0.
const (
	dirAsks    int8 = iota + 1 // the Txn that takes D is on its way
	dirTaken                   // its answer is on its way
	dirHas                     // the mount has D
	dirEnds                    // what is open gets entries
	dirDeletes                 // the Txn that deletes D is on its way
)

type delegCall struct {
	phase int8
	opens int8
	rev   int8 // of its entry in the service
	saw   int8 // the revision at which it found the D that it waits for
	under int8 // directory+1 of the D that it has its file by
	entry int8 // of what is open by a D: what becomes of its entry
	ahead uint16
}

// The entry of a file that is open by a D; it has none at 0.
const (
	entryAsked int8 = iota + 1 // its Txn is on its way
	entryPut                   // the answer is on its way
)

// Phases of a program apart from idle, lookingHere, requesting, inLine, holding and done.
const (
	waitingForD   int8 = iota + 70 // it has recalled a D, and has put nothing
	leavingD                       // it has closed a file whose entry was asked for
	deletingEntry                  // its entry is to be deleted
)

type delegState struct {
	d      [delegMounts][delegDirs]delegDir
	p      [delegPrograms]delegCall
	lease  [delegMounts]bool
	valid  [delegMounts]bool
	rev    int8
	newest [delegFiles][2]int8 // the last token: revision, number
	ends   int8
	wrong  string
}

// renames is what a program wants that tries to rename d/e, while nothing is open below it.
const renames = 2

// over reports whether a file is strictly below a directory.
func over(dir, file int) bool { return dir == 0 || file == 1 }

// rivals reports whether two owners cannot have both.
func rivals(x, y int) bool { return x == y || x+y == 1+renames }

// inWay reports whether another mount's D of a directory is in the way of a file.
func inWay(dir, file int) bool { return over(dir, file) || file == renames }

func dBit(m, dir int) uint16 { return 1 << (delegPrograms + m*delegDirs + dir) }

func (w *delegWorld) start() delegState {
	var s delegState
	for p := range s.p {
		s.p[p].phase = done
		if p < len(w.programs) {
			s.p[p].phase = idle
		}
	}
	for m := range s.valid {
		s.valid[m], s.lease[m] = true, true
	}
	return s
}

func (w *delegWorld) broken(s delegState) string {
	if s.wrong != "" {
		return s.wrong
	}
	for p, program := range w.programs {
		c := &s.p[p]
		if c.phase != holding || !s.valid[program.mount] {
			continue
		}
		covered := c.rev != 0
		if c.under != 0 {
			d := &s.d[program.mount][c.under-1]
			covered = covered || d.rev != 0 && d.rev == d.token
		}
		if !covered {
			return "a program believes in an entry which is gone"
		}
		for q, other := range w.programs[:p] {
			if rivals(other.file, program.file) && s.p[q].phase == holding && s.valid[other.mount] {
				if other.file != program.file {
					return "a directory is renamed while a file below it is open"
				}
				return "two owners have one file open for write"
			}
		}
	}
	return ""
}

// waits reports whether a request waits, or an entry stands that nobody uses.
func (w *delegWorld) waits(s delegState) bool {
	for p := range w.programs {
		if c := &s.p[p]; c.phase != idle && c.phase != done && c.phase != holding || c.rev != 0 && c.phase != holding {
			return true
		}
	}
	return false
}

// normalize numbers the revisions anew.
func (s *delegState) normalize(w *delegWorld) {
	var revs revisions
	for m := range s.d {
		for k := range s.d[m] {
			d := &s.d[m][k]
			if d.phase == nothing {
				*d = delegDir{rev: d.rev, taken: d.taken}
			}
			revs.add(&d.rev, &d.token, &d.known)
		}
	}
	for p := range w.programs {
		revs.add(&s.p[p].rev, &s.p[p].saw)
	}
	for x := range s.newest {
		revs.add(&s.newest[x][0])
	}
	s.rev = revs.renumber()
}

func (w *delegWorld) steps(s delegState, to func(delegState, step)) {
	as := func(who string) delegDo {
		return func(what string, maybe bool, f func(n *delegState)) {
			n := s
			f(&n)
			n.normalize(w)
			to(n, step{who, what, maybe})
		}
	}
	for p, program := range w.programs {
		w.program(&s, p, as("program "+string(rune('P'+p))+" on "+mountNames[program.mount]))
	}
	for m := range s.d {
		for k := range s.d[m] {
			w.directory(&s, m, k, as(mountNames[m]))
		}
		w.session(&s, m, as(mountNames[m]))
	}
}

type delegDo func(what string, maybe bool, f func(n *delegState))
