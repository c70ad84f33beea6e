package kubelease_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

// What locks ask of the API server: docs/KUBERNETES.md has the table.
func TestRequests(t *testing.T) {
	name, l := newName(), &link{}
	b := newBackendAt(t, l.to(as(mountUser)), name)
	s, other := open(t, b), open(t, newBackend(t, name))
	eventually(t, "the watch stands", func() bool { return l.count("watch") > 0 })
	cost := func(what string, want string, f func()) {
		t.Helper()
		verbs := []string{"create", "update", "delete", "get"}
		before := make(map[string]int)
		for _, v := range verbs {
			before[v] = l.count(v)
		}
		f()
		got := ""
		for _, v := range verbs {
			if n := l.count(v) - before[v]; n > 0 {
				got += fmt.Sprintf("%s %d ", v, n)
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	cycle := func(keys ...lockmgr.Key) func() {
		return func() { release(t, s, must(t, s, lockmgr.Queue, keys...)...) }
	}
	cost("a new file", "create 1 update 1 ", cycle(file("f")))
	cost("a file", "update 2 ", cycle(file("f")))
	cost("two files", "create 1 update 3 ", cycle(file("f"), file("g")))
	cost("a file, at once", "update 2 ", func() { release(t, s, must(t, s, lockmgr.NoWait, file("f"))...) })
	cost("the first directory", "create 1 update 1 ", func() { release(t, s, must(t, s, lockmgr.Retry, tree("d"))...) })
	cost("a directory", "update 2 ", func() { release(t, s, must(t, s, lockmgr.Retry, tree("e"))...) })

	asked := l.count("get")
	for range 100 { // a program that reads user.lockfs.token in a loop
		if _, err := b.Rivals(within(t, patience), file("f")); err != nil {
			t.Fatal(err)
		}
	}
	if n := l.count("get") - asked; n > 50 {
		t.Errorf("to read who has a file 100 times cost %d requests", n)
	}

	held := must(t, other, lockmgr.NoWait, file("f"))
	refused := func() {
		if _, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, file("f"))); !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("Acquire: %v", err)
		}
	}
	refused() // the watch may not have shown it yet, which costs a write that is refused
	cost("what another has, at once", "get 2 ", refused)
	cost("a renewal", "update 1 ", func() {
		if err := s.Renew(within(t, patience)); err != nil {
			t.Error(err)
		}
	})
	waits := make(chan struct{})
	cost("a wait and a release", "update 2 ", func() {
		req := request(lockmgr.Queue, file("f"))
		req.Waits = func() { close(waits) }
		got := start(within(t, patience), s, req)
		<-waits
		release(t, other, held...)
		a := await(t, got)
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		release(t, s, a.Grants...)
	})
}

// The lock is taken and let go by one mount, and from hand to hand by several.
func BenchmarkCycle(b *testing.B) {
	for _, mounts := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprintf("mounts=%d", mounts), func(b *testing.B) { benchmark(b, mounts, true) })
	}
	b.Run("files=8", func(b *testing.B) { benchmark(b, 8, false) })
}

func benchmark(b *testing.B, mounts int, oneFile bool) {
	name, l := newName(), &link{}
	var sessions []lockmgr.Session
	for range mounts {
		client, err := kubelease.NewClient(l.to(as(mountUser)))
		if err != nil {
			b.Fatal(err)
		}
		backend, err := kubelease.New(kubelease.Config{Client: client, Namespace: "bench", Name: name, LeaseNamespace: space})
		if err != nil {
			b.Fatal(err)
		}
		defer backend.Close()
		s, err := backend.OpenSession(b.Context(), lockmgr.SessionInfo{Node: "n"}, 15e9)
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close(b.Context())
		sessions = append(sessions, s)
	}
	writes := l.count("create", "update")
	reads := l.count("get", "list")
	b.ResetTimer()
	var wg sync.WaitGroup
	for i, s := range sessions {
		k := file("f")
		if !oneFile {
			k = file(fmt.Sprint("f", i))
		}
		wg.Go(func() {
			for n := i; n < b.N; n += mounts {
				g, err := s.Acquire(b.Context(), request(lockmgr.Queue, k))
				if err == nil {
					err = s.Release(b.Context(), g[0])
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(l.count("create", "update")-writes)/float64(b.N), "writes/op")
	b.ReportMetric(float64(l.count("get", "list")-reads)/float64(b.N), "reads/op")
}
