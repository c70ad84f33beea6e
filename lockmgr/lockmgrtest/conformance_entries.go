package lockmgrtest

import (
	"slices"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// testEntries: holders and waiters are listed by path and token, within a prefix, together
// with those of directories above it.
func testEntries(t *bench) {
	s := t.open()
	if list := t.entries(""); len(list) != 0 {
		t.Fatalf("a new volume has %v", list)
	}
	req := Request(lockmgr.NoWait, File("a"))
	req.Holder = lockmgr.Holder{
		AcquisitionID: req.Holder.AcquisitionID, Session: s.ID(), Node: "n1", Pod: "p1", PID: 42, UID: 1000,
		Comm: "prog", Since: time.Unix(1700000000, 0).UTC(),
	}
	grants, err := s.Acquire(t.within(Patience), req)
	if err != nil {
		t.Fatal(err)
	}
	t.must(s, lockmgr.NoWait, File("ab"))
	t.must(s, lockmgr.NoWait, File("a/b"))
	t.must(s, lockmgr.NoWait, File("a/b.c"))
	t.must(s, lockmgr.NoWait, Tree("c/d"))
	t.must(s, lockmgr.NoWait, Tree("cd"))

	want := lockmgr.Entry{Key: File("a"), Holder: req.Holder, Token: grants[0].Token, Held: true}
	if got := t.entries("a")[0]; got != want {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	for prefix, want := range map[string][]string{
		"":       {"a", "a/b", "a/b.c", "ab", "c/d/", "cd/"},
		"a":      {"a", "a/b", "a/b.c"},
		"a/b":    {"a/b"},
		"a/b/c":  nil,
		"c":      {"c/d/"},
		"c/d":    {"c/d/"},
		"c/d/e":  {"c/d/"},
		"cd/e/f": {"cd/"},
		"d":      nil,
	} {
		var got []string
		for _, e := range t.entries(prefix) {
			got = append(got, e.Key.String())
			if !e.Held {
				t.Errorf("%v is not held", e)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("Entries(%q): %q, want %q", prefix, got, want)
		}
	}
	for _, k := range []lockmgr.Key{File("a"), File("a/b"), File("a/x"), File("c/d"), File("c/d/e"), File("cd/e/f"), File("ce"), Tree("a"), Tree("c"), Tree("c/d"), Tree("c/d/e"), Tree("d")} {
		t.rivals(k)
	}
	if !t.opts.Ordered {
		return
	}
	// A file below a directory that is held waits. The directory is listed with it.
	below := Start(t.within(Patience), s, Request(lockmgr.Queue, File("c/d/e")))
	behind := Start(t.within(Patience), s, Request(lockmgr.Queue, File("a")))
	t.eventually("the file waits", func() bool {
		list := t.entries("c/d/e")
		return len(list) == 2 && list[0].Key == Tree("c/d") && list[0].Held && list[1].Key == File("c/d/e") && !list[1].Held
	})
	t.eventually("the other stands behind", func() bool {
		list := t.entries("a")
		return len(list) == 4 && list[0].Held && !list[1].Held && list[1].Key == File("a")
	})
	t.rivals(File("a"))
	t.rivals(File("c/d/e"))
	t.rivals(Tree("c"))
	if err := s.Close(t.within(Patience)); err != nil {
		t.Fatal(err)
	}
	t.await(below)
	t.await(behind)
}

// testInodes: names of one file exclude each other by its inode only. The entries of inodes
// are listed after those of names.
func testInodes(t *bench) {
	s1, s2 := t.open(), t.open()
	seven := inode("", 7)
	held := t.must(s1, lockmgr.NoWait, File("d/a"), seven)
	_, err := s2.Acquire(t.within(Patience), Request(lockmgr.NoWait, File("b"), seven))
	t.contended(err, seven, held[1].AcquisitionID, nil)
	t.listed(held[0].AcquisitionID, held[1].AcquisitionID)

	// A number is not a name, and each file system has numbers of its own.
	t.release(s2, t.must(s2, lockmgr.NoWait, Tree("7"))...)
	others := t.must(s2, lockmgr.NoWait, File("7"), Tree("mnt"), inode("mnt", 7))
	for prefix, want := range map[string][]lockmgr.Key{
		"":    {File("7"), File("d/a"), Tree("mnt"), seven, inode("mnt", 7)},
		"d":   {File("d/a"), seven},
		"7":   {File("7"), inode("mnt", 7)},
		"mnt": {Tree("mnt"), inode("mnt", 7)},
		"m":   nil,
	} {
		var got []lockmgr.Key
		for _, e := range t.entries(prefix) {
			got = append(got, e.Key)
			if !e.Held {
				t.Errorf("%v is not held", e)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("Entries(%q): %q, want %q", prefix, got, want)
		}
	}
	for _, k := range []lockmgr.Key{seven, inode("mnt", 7), inode("", 8), File("7"), File("d/a"), Tree("d")} {
		t.rivals(k)
	}
	t.release(s2, others...)

	// Each of the two is released by itself. The waiter needs both.
	req := Request(lockmgr.Queue, File("b"), seven)
	got := Start(t.within(Patience), s2, req)
	if t.opts.Ordered {
		t.eventually("the waiter stands behind the inode", func() bool {
			list := t.entries("b")
			return len(list) == 2 && list[0].Held && !list[1].Held && list[1].Key == seven
		})
	}
	t.release(s1, held[0])
	select {
	case a := <-got:
		t.Fatalf("granted while the inode is held: %v", a)
	default:
	}
	t.release(s1, held[1])
	a := t.await(got)
	if a.Err != nil || a.Grants[1].Token <= held[1].Token {
		t.Fatalf("after the release: %v, %v", a.Grants, a.Err)
	}
	t.release(s2, a.Grants...)
	t.listed()
}

// testPathBytes: a path is any bytes, also if it looks like a part of the backend's layout.
func testPathBytes(t *bench) {
	s1, s2 := t.open(), t.open()
	var keys []lockmgr.Key
	for _, p := range []string{
		"w", "r", "tree", "epoch", "volume", "session", "locks", "lockfs", "w/w", "tree/w", "w/00000000-0000-0000-0000-000000000000",
		" ", " lead", "trail ", "two  blanks", "tab\t", "new\nline", "per%cent", "back\\slash", `quo"te`, "sem;colon", "star*", "...", ".hidden",
		"\xff\xfe", "\x01", "latin\xe9", "ünï/cödé", "日本", "\xed\xa0\x80", "A", "long/" + string(make255()),
	} {
		keys = append(keys, File(p))
	}
	slices.SortFunc(keys, func(x, y lockmgr.Key) int {
		if x.Path < y.Path {
			return -1
		}
		return 1
	})
	for _, k := range keys {
		t.must(s1, lockmgr.NoWait, k)
	}
	list := t.entries("")
	if len(list) != len(keys) {
		t.Fatalf("%d entries for %d keys", len(list), len(keys))
	}
	for i, e := range list {
		if e.Key != keys[i] || !e.Held {
			t.Fatalf("entry %d is %v, want %q", i, e, keys[i].Path)
		}
		if len(t.entries(e.Key.Path)) == 0 {
			t.Fatalf("Entries(%q) is empty", e.Key.Path)
		}
		_, err := s2.Acquire(t.within(Patience), Request(lockmgr.NoWait, e.Key))
		t.contended(err, e.Key, e.Holder.AcquisitionID, nil)
	}
}

// make255 is the longest name a file system takes, of bytes that are no UTF-8.
func make255() []byte { return slices.Repeat([]byte{0x80}, 255) }
