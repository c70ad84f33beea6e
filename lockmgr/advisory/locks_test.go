package advisory

import "testing"

func posix(mount string, id, start, end uint64, exclusive bool) Lock {
	return Lock{Owner: Owner{Mount: mount, ID: id}, Start: start, End: end, Exclusive: exclusive}
}

func whole(mount string, id uint64, exclusive bool) Lock {
	return Lock{Owner: Owner{Mount: mount, Kind: Flock, ID: id}, End: EOF, Exclusive: exclusive}
}

func TestConflicts(t *testing.T) {
	for name, c := range map[string]struct {
		a, b Lock
		want bool
	}{
		"both exclusive":        {posix("a", 1, 0, 9, true), posix("a", 2, 9, 10, true), true},
		"one exclusive":         {posix("a", 1, 0, 9, true), posix("b", 1, 5, 5, false), true},
		"both shared":           {posix("a", 1, 0, 9, false), posix("b", 1, 5, 5, false), false},
		"apart":                 {posix("a", 1, 0, 9, true), posix("b", 1, 10, 10, true), false},
		"one owner":             {posix("a", 1, 0, 9, true), posix("a", 1, 5, 5, true), false},
		"another kind":          {posix("a", 1, 0, EOF, true), whole("b", 1, true), false},
		"flocks":                {whole("a", 1, true), whole("a", 2, false), true},
		"numbers of two mounts": {whole("a", 1, true), whole("b", 1, true), true},
	} {
		if c.a.Conflicts(c.b) != c.want || c.b.Conflicts(c.a) != c.want {
			t.Errorf("%s: want %v", name, c.want)
		}
	}
}

// A request that is not free keeps nobody waiting; one that is free keeps those behind it.
func TestWhoseTurn(t *testing.T) {
	v := View{
		Held: []Lock{posix("b", 1, 0, 0, true)},
		Line: []Waiter{
			{ID: "blocked", Ticket: 1, Lock: posix("c", 1, 0, 5, true)},
			{ID: "free", Ticket: 2, Lock: posix("d", 1, 3, 9, true)},
		},
	}
	if w, ok := v.Ahead(posix("a", 1, 2, 2, true), 9); ok {
		t.Errorf("%s is ahead, and cannot have its lock", w.ID)
	}
	if w, _ := v.Ahead(posix("a", 1, 4, 4, true), 9); w.ID != "free" {
		t.Errorf("%q is ahead, want the one that is free", w.ID)
	}
	if w, ok := v.Ahead(posix("a", 1, 4, 4, true), 2); ok {
		t.Errorf("%s is ahead of an earlier one", w.ID)
	}
	v.Mine.Set(posix("a", 7, 9, 9, false))
	if w, ok := v.Ahead(posix("a", 1, 4, 4, true), 9); ok {
		t.Errorf("%s is ahead, and waits for a lock of this mount", w.ID)
	}
}

func TestCycle(t *testing.T) {
	a, b, c := posix("a", 1, 0, 0, true), posix("b", 1, 0, 0, true), posix("c", 1, 0, 0, true)
	files := []File{
		{Held: []Lock{a}, Line: []Waiter{{ID: "b waits for a", Lock: b, Ticket: 3}}},
		{Held: []Lock{b}, Line: []Waiter{{ID: "c waits for b", Lock: c, Ticket: 2}}},
		{Held: []Lock{c}, Line: []Waiter{{ID: "a waits for c", Lock: a, Ticket: 5}}},
	}
	for id, want := range map[string]bool{"b waits for a": false, "c waits for b": false, "a waits for c": true, "nobody": false} {
		if got := cycle(files, id); got != want {
			t.Errorf("%s: closes a cycle: %v, want %v", id, got, want)
		}
	}
	files[1].Held = nil
	if cycle(files, "a waits for c") {
		t.Error("a cycle without one of its locks")
	}
	// Of another range of the file.
	files[1].Held = []Lock{posix("b", 1, 1, EOF, true)}
	if cycle(files, "a waits for c") {
		t.Error("a cycle by a lock that nobody waits for")
	}
	// A loop that the request has no part in.
	files = []File{
		{Held: []Lock{a}, Line: []Waiter{{ID: "b waits for a", Lock: b, Ticket: 1}, {ID: "c waits for a", Lock: c, Ticket: 3}}},
		{Held: []Lock{b}, Line: []Waiter{{ID: "a waits for b", Lock: a, Ticket: 2}}},
	}
	if cycle(files, "c waits for a") {
		t.Error("a request that waits for a cycle closes none")
	}
	files = []File{
		{Held: []Lock{a}, Line: []Waiter{{ID: "b waits for a", Lock: b, Ticket: 2}}},
		{Held: []Lock{b}, Line: []Waiter{{ID: "a tries", Lock: a, Ticket: 1, Tries: true}}},
	}
	if cycle(files, "b waits for a") {
		t.Error("a cycle by a request that does not wait")
	}
	flocks := []File{
		{Held: []Lock{whole("a", 1, true)}, Line: []Waiter{{ID: "1", Lock: whole("b", 1, true), Ticket: 1}}},
		{Held: []Lock{whole("b", 1, true)}, Line: []Waiter{{ID: "2", Lock: whole("a", 1, true), Ticket: 2}}},
	}
	if cycle(flocks, "2") {
		t.Error("a cycle of flocks: Linux finds none")
	}
}

func cycle(files []File, id string) bool {
	for _, f := range files {
		for _, w := range f.Line {
			if w.ID == id {
				return WaitsOf(files).Cycle(w.Lock.Owner, id)
			}
		}
	}
	return false
}
