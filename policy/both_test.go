package policy

import (
	"testing"
	"time"
)

// Of two decisions the stricter one holds, whichever comes from the former policy.
func TestBoth(t *testing.T) {
	const (
		lock     = "** lock"
		nolock   = "** nolock"
		readonly = "** readonly"
	)
	for _, c := range []struct {
		a, b   string
		action Action
		scope  Scope
		flock  Flock
	}{
		{"", "", Lock, ScopeAuto, FlockLocal},
		{"", nolock, Lock, ScopeAuto, FlockLocal},
		{lock, readonly, ReadOnly, ScopeAuto, FlockLocal},
		{nolock, readonly, ReadOnly, ScopeAuto, FlockLocal},
		{nolock, nolock, NoLock, ScopeAuto, FlockLocal},
		{lock + " scope=node", nolock, Lock, ScopeNode, FlockLocal}, // nolock has no owners
		{lock + " scope=node", lock + " scope=handle", Lock, ScopeHandle, FlockLocal},
		{lock + " scope=pod", lock, Lock, ScopeAuto, FlockLocal},
		{lock + " scope=process", lock, Lock, ScopeProcess, FlockLocal},
		{nolock + " flock=cluster", lock, Lock, ScopeAuto, FlockCluster},
		{"other nolock", nolock, Lock, ScopeAuto, FlockLocal},
	} {
		for _, texts := range [][2]string{{c.a, c.b}, {c.b, c.a}} {
			p := Both(Terms{Policy: mustParse(t, texts[0])}, Terms{Policy: mustParse(t, texts[1])}, ScopeAuto)
			if d := p.Match("f"); d.Action != c.action || d.Scope != c.scope || d.Flock != c.flock {
				t.Errorf("%q and %q: %s, scope %s, flock %s; want %s, %s, %s", texts[0], texts[1], d.Action, d.Scope, d.Flock, c.action, c.scope, c.flock)
			}
			if p.Empty() {
				t.Errorf("%q and %q: empty", texts[0], texts[1])
			}
		}
	}
}

// Beside a mount of either policy, a mount of both keeps all that this one promises: for every pair of
// rules, by the meaning of their words.
func TestBothIsAtLeastAsStrict(t *testing.T) {
	var rules []string
	for _, flock := range Flocks {
		for _, scope := range Scopes {
			rules = append(rules, "** lock scope="+string(scope)+" flock="+string(flock))
		}
		rules = append(rules, "** nolock flock="+string(flock), "** readonly flock="+string(flock))
	}
	for _, a := range rules {
		for _, b := range rules {
			one, other := Terms{Policy: mustParse(t, a)}, Terms{Policy: mustParse(t, b)}
			d := Both(one, other, ScopeAuto).Match("f")
			for _, of := range []Terms{one, other} {
				promised := of.Policy.Match("f")
				if d.Action == NoLock && promised.Action != NoLock || d.Action != ReadOnly && promised.Action == ReadOnly {
					t.Fatalf("%q and %q: %s", a, b, d.Action)
				}
				if d.Flock == FlockLocal && promised.Flock == FlockCluster {
					t.Fatalf("%q and %q: flock %s", a, b, d.Flock)
				}
				if d.Action == Lock && promised.Action == Lock && owners(d.Scope) > owners(promised.Scope) {
					t.Fatalf("%q and %q: scope %s", a, b, d.Scope)
				}
			}
		}
	}
}

// owners grows with the number of handles that one owner of the scope may have.
func owners(s Scope) int {
	return map[Scope]int{ScopeHandle: 1, ScopeProcess: 2, ScopeAuto: 3, ScopePod: 4, ScopeNode: 5}[s]
}

func TestBothOfAMount(t *testing.T) {
	next := Terms{Policy: mustParse(t, "*.log nolock\n/a/** lock wait=1s keep=0"), Flock: FlockLocal}
	former := Terms{Policy: mustParse(t, "/b/** readonly\n/a/** lock wait=9s"), Flock: FlockCluster}
	p := Both(next, former, ScopeNode)
	d := p.Match("a/f")
	if d.Wait == nil || *d.Wait != time.Second || d.Keep == nil || *d.Keep != 0 || d.Scope != ScopeNode || d.Flock != FlockCluster {
		t.Errorf("%+v", d)
	}
	if !p.SharesFlocks() || len(p.Rules()) != 4 || len(p.Unmatched()) != 2 {
		t.Errorf("shares flocks: %v; rules %v; unmatched %v", p.SharesFlocks(), p.Rules(), p.Unmatched())
	}
	for _, c := range []struct {
		from, to string
		same     bool
	}{{"c", "d", true}, {"b", "c", false}, {"b/x", "b/y", true}} {
		if same := p.SameBelow(c.from, c.to); same != c.same {
			t.Errorf("SameBelow(%s, %s) = %v", c.from, c.to, same)
		}
	}
	if Both(next, Terms{Policy: former.Policy}, ScopeNode).SharesFlocks() {
		t.Error("shares flocks, which both keep local")
	}
}
