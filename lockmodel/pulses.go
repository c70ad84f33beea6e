package main

import "fmt"

// The pulses model: a session in Leases of Kubernetes (lockmgr/kubelease) is two objects.
// All mounts see whether the session exists. The other object, the pulse, is renewed, and
// only the keepers see that. A keeper that has seen no renewal for a TTL deletes the pulse
// and then the session, each by its own request, and may die in between. Can a session end
// while its mount believes in it? Does each session end that nobody renews?

const (
	pulseKeepers = 2
	pulseTTL     = 2 // ticks
)

type pulsesWorld struct {
	renewals int8 // how often the mount renews at most
	deaths   int8 // how many keepers die
	faults   int8 // how many answers are lost
	mut      string
}

type pulsesState struct {
	pulse   int8 // its version; 0: there is none
	version int8 // the newest version ever
	session bool
	renewed int8 // how often
	faults  int8
	deaths  int8

	// The mount.
	opened int8 // how many of the two objects it has created
	lost   bool // it knows of its loss
	known  int8 // the version that it would replace
	age    int8 // ticks since it sent the last renewal that was answered
	on     bool // a renewal is on its way,
	base   int8 // that replaces this version
	sent   int8 // sent this many ticks ago

	keepers [pulseKeepers]pulseKeeper
}

type pulseKeeper struct {
	dead  bool
	keeps bool
	seen  int8 // the version it saw last; 0: none
	since int8 // ticks since it first saw that
	ends  int8 // the version that it asks to delete; 0: none
	half  bool // the pulse is deleted
}

func (w *pulsesWorld) start() (s pulsesState) { return s }

func (w *pulsesWorld) believes(s *pulsesState) bool {
	return s.opened == 2 && !s.lost && s.age < pulseTTL
}

func (w *pulsesWorld) broken(s pulsesState) string {
	if w.believes(&s) && !s.session {
		return "a session has ended in which its mount believes"
	}
	return ""
}

func (w *pulsesWorld) waits(s pulsesState) bool { return s.session || s.pulse != 0 }

func (w *pulsesWorld) steps(s pulsesState, to func(pulsesState, step)) {
	do := func(who, what string, maybe bool, f func(n *pulsesState)) {
		n := s
		f(&n)
		to(n, step{who, what, maybe})
	}
	do("time", "passes", false, func(n *pulsesState) {
		n.age, n.sent = min(n.age+1, pulseTTL), min(n.sent+1, pulseTTL)
		for i := range n.keepers {
			n.keepers[i].since = min(n.keepers[i].since+1, pulseTTL)
		}
	})
	w.mount(&s, do)
	for i := range s.keepers {
		who := fmt.Sprintf("keeper %d", i)
		w.keeper(&s, i, func(what string, maybe bool, f func(n *pulsesState, k *pulseKeeper)) {
			do(who, what, maybe, func(n *pulsesState) { f(n, &n.keepers[i]) })
		})
	}
}

func (w *pulsesWorld) mount(s *pulsesState, do func(who, what string, maybe bool, f func(n *pulsesState))) {
	first := w.mut != "openfirst" // the pulse
	if s.opened < 2 && !s.lost {
		what := "creates the session"
		if (s.opened == 0) == first {
			what = "creates the pulse"
		}
		do("mount", what, true, func(n *pulsesState) {
			if n.opened++; (n.opened == 1) == first {
				n.pulse, n.version, n.known, n.age = 1, 1, 1, 0
				return
			}
			n.session = true
		})
		do("mount", "dies", true, func(n *pulsesState) { n.lost = true })
	}
	if s.opened == 2 && !s.lost && !s.on && s.renewed < w.renewals {
		do("mount", "sends a renewal", true, func(n *pulsesState) {
			n.renewed++
			n.on, n.base, n.sent = true, n.known, 0
		})
	}
	if !s.on {
		return
	}
	arrive := func(n *pulsesState) bool {
		n.on = false
		if n.pulse != n.base {
			return false
		}
		n.version++
		n.pulse = n.version
		return true
	}
	do("server", "carries out the renewal, or refuses it", false, func(n *pulsesState) {
		switch ok := arrive(n); {
		case ok:
			n.known, n.age = n.pulse, n.sent
		case n.pulse == 0:
			n.lost = true
		default:
			n.known = n.pulse
		}
	})
	if s.faults < w.faults {
		do("server", "carries out the renewal, the answer is lost", true, func(n *pulsesState) {
			n.faults++
			arrive(n)
		})
	}
}

func (w *pulsesWorld) keeper(s *pulsesState, i int, do func(what string, maybe bool, f func(n *pulsesState, k *pulseKeeper))) {
	k := s.keepers[i]
	if k.ends != 0 {
		do("server carries out the end, or refuses it", false, func(n *pulsesState, k *pulseKeeper) {
			switch {
			case w.mut == "sessionfirst":
				n.session, k.half = false, true
			case n.pulse == k.ends || n.pulse != 0 && w.mut == "condition":
				n.pulse, k.half = 0, true
			default:
				k.seen, k.since, k.half = n.pulse, 0, n.pulse == 0
			}
			k.ends = 0
		})
	}
	if k.dead {
		return
	}
	if s.deaths < w.deaths {
		do("dies", true, func(n *pulsesState, k *pulseKeeper) {
			n.deaths++
			k.dead, k.keeps, k.half = true, false, false
		})
	}
	other := s.keepers[1-i]
	switch {
	case !k.keeps && !other.keeps && (i == 0 || w.mut != "takeover"):
		do("begins to keep watch", false, func(n *pulsesState, k *pulseKeeper) {
			k.keeps, k.seen, k.since = true, n.pulse, 0
			if w.mut == "fresh" {
				k.since = pulseTTL
			}
		})
		return
	case !k.keeps:
		do("begins to keep watch as well", true, func(n *pulsesState, k *pulseKeeper) {
			k.keeps, k.seen, k.since = true, n.pulse, 0
		})
		return
	}
	if k.seen != s.pulse {
		do("sees the pulse", false, func(n *pulsesState, k *pulseKeeper) { k.seen, k.since = n.pulse, 0 })
	}
	switch {
	case k.half && w.mut == "sessionfirst":
		do("deletes the pulse", false, func(n *pulsesState, k *pulseKeeper) { n.pulse, k.half = 0, false })
	case k.half:
		do("deletes the session", false, func(n *pulsesState, k *pulseKeeper) { n.session, k.half = false, false })
	case k.ends == 0 && k.seen != 0 && k.since == pulseTTL:
		do("asks for the end", false, func(_ *pulsesState, k *pulseKeeper) { k.ends = k.seen })
	case s.session && s.pulse == 0 && w.mut != "rest":
		do("finds no pulse, deletes the session", false, func(n *pulsesState, _ *pulseKeeper) { n.session = false })
	}
}
