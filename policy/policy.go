package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Action is what a rule does with the files it matches.
type Action uint8

// The actions.
const (
	Lock     Action = iota // open for write takes the lock
	NoLock                 // open for write takes none
	ReadOnly               // nothing is changed through the view
)

var actions = []string{Lock: "lock", NoLock: "nolock", ReadOnly: "readonly"}

func (a Action) String() string { return actions[a] }

// Form is how a rule is written, for messages.
var Form = "GLOB " + strings.Join(actions, "|") + " [wait=DURATION] [scope=SCOPE] [keep=DURATION] [flock=local|cluster]"

// Decision is what holds for one path. The zero value is that of a path which
// no rule matches: it is locked by the terms of the mount.
type Decision struct {
	Action Action
	Wait   *time.Duration // how long an open waits, negative for ever; nil: as the mount says
	Scope  Scope          // who shares the lock; empty: as the mount says
	Keep   *time.Duration // how long the mount keeps the lock, 0 not at all; nil: as the mount says
	Flock  Flock          // whom flock and fcntl exclude; empty: as the mount says
}

// Rule is one line of a policy.
type Rule struct {
	Decision
	glob glob
	seen atomic.Bool // it has decided about a path
}

// String returns the rule in the one spelling that Digest hashes.
func (r *Rule) String() string {
	words := []string{r.glob.String(), r.Action.String()}
	if r.Wait != nil {
		words = append(words, "wait="+formatWait(*r.Wait))
	}
	if r.Scope != "" {
		words = append(words, "scope="+string(r.Scope))
	}
	if r.Keep != nil {
		words = append(words, "keep="+r.Keep.String())
	}
	if r.Flock != "" {
		words = append(words, "flock="+string(r.Flock))
	}
	return strings.Join(words, " ")
}

func formatWait(d time.Duration) string {
	if d < 0 {
		return "-1"
	}
	return d.String()
}

// Policy is the rules of a volume, in order. A nil Policy has none. It is safe
// for concurrent use.
type Policy struct {
	rules []*Rule
	both  *both // Both made it; nil: the rules say all
}

// Empty reports whether there are no rules, so that every file is locked.
func (p *Policy) Empty() bool { return p == nil || len(p.rules) == 0 && p.both == nil }

// Match returns what holds for a path, relative to the volume's root and clean.
func (p *Policy) Match(path string) Decision {
	if p == nil {
		return Decision{}
	}
	if p.both != nil {
		return p.both.match(path)
	}
	for _, r := range p.rules {
		if r.glob.match(path) {
			if !r.seen.Load() { // a store each time would make the rule's cache line travel
				r.seen.Store(true)
			}
			return r.Decision
		}
	}
	return Decision{}
}

// SharesFlocks reports whether the policy has a rule by which flock and fcntl exclude programs on all
// mounts.
func (p *Policy) SharesFlocks() bool {
	if p != nil && p.both != nil {
		return p.both.next.sharesFlocks() || p.both.former.sharesFlocks()
	}
	return slices.ContainsFunc(p.Rules(), func(r *Rule) bool { return r.Flock == FlockCluster })
}

// SameBelow reports whether every file below a directory certainly keeps its Action and its Flock when
// the directory moves: each rule matches the same names below both paths.
func (p *Policy) SameBelow(from, to string) bool {
	if p != nil && p.both != nil {
		return p.both.next.Policy.SameBelow(from, to) && p.both.former.Policy.SameBelow(from, to)
	}
	if p == nil || !slices.ContainsFunc(p.rules, func(r *Rule) bool { return r.Action != Lock || r.Flock != "" }) {
		return true
	}
	return !slices.ContainsFunc(p.rules, func(r *Rule) bool {
		return !slices.Equal(r.glob.below(from), r.glob.below(to))
	})
}

// Rules returns the rules in order.
func (p *Policy) Rules() []*Rule {
	switch {
	case p == nil:
		return nil
	case p.both != nil:
		return slices.Concat(p.both.next.Policy.Rules(), p.both.former.Policy.Rules())
	}
	return p.rules
}

// Unmatched returns the rules that have not decided about any path yet. Their globs may be
// wrong, or an earlier rule may override them.
func (p *Policy) Unmatched() []*Rule {
	var unmatched []*Rule
	for _, r := range p.Rules() {
		if !r.seen.Load() {
			unmatched = append(unmatched, r)
		}
	}
	return unmatched
}

// Digest names the policy of mounts with a --flock: the same for the same rules in the same
// order. Mounts with another --flock have another, for they exclude each other from no flock. A policy
// of Both has none: see Terms.
func (p *Policy) Digest(flock Flock) string {
	h := sha256.New()
	for _, r := range p.Rules() {
		h.Write([]byte(r.String() + "\n"))
	}
	if flock == FlockCluster {
		h.Write([]byte("flock=cluster\n")) // no rule is one word
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}
