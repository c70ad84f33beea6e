package lockmgrtest

import "github.com/lockfs/lockfs/lockmgr"

// testUndisturbed asks, between any two grants of a mount, whether a directory at or above was
// locked. A backend may say so of a directory elsewhere.
func testUndisturbed(t *bench) {
	s, other := t.open(), t.open()
	file := func(s lockmgr.Session) int64 {
		g := t.must(s, lockmgr.Queue, File("d/f"))
		t.release(s, g...)
		return g[0].Token
	}
	check := func(what string, from, to int64, want bool) {
		t.Helper()
		if got := s.Undisturbed(File("d/f"), lockmgr.FencingToken(from, 0), lockmgr.FencingToken(to, 0)); got != want {
			t.Errorf("%s: undisturbed %v, want %v", what, got, want)
		}
	}
	first := file(s)
	second := file(s)
	check("nothing between", first, second, true)
	check("from the later to the earlier", second, first, false)

	file(other)
	check("a file between", second, file(s), true)

	for _, by := range []lockmgr.Session{s, other} {
		for _, path := range []string{"d", "d/f"} {
			before := file(s)
			dir := t.must(by, lockmgr.Retry, Tree(path))
			t.release(by, dir...)
			after := file(s)
			check("directory "+path+" between", before, after, false)
			check("after directory "+path, after, file(s), true)
		}
	}

	before := file(s)
	dir := t.must(other, lockmgr.Retry, Tree("d"))
	waiting := Start(t.within(Patience), s, Request(lockmgr.Queue, File("d/f")))
	t.eventually("in line", func() bool { return len(t.entries("d/f")) > 0 })
	t.release(other, dir...)
	a := t.await(waiting)
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	check("a directory was waited for", before, a.Grants[0].Token, false)
	t.release(s, a.Grants...)
}
