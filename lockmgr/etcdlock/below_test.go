package etcdlock_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/lockfs/lockfs/lockmgr"

	"github.com/lockfs/lockfs/renew"
)

// delegation asks for a directory.
func delegation(path string) lockmgr.AcquireRequest {
	req := request(lockmgr.NoWait, tree(path))
	req.Mode, req.Keep = lockmgr.Delegated, true
	return req
}

func delegate(t *testing.T, s lockmgr.Session, path string) lockmgr.Grant {
	t.Helper()
	return acquire(t, s, delegation(path))[0]
}

// below returns n files of a directory, and a directory in it, to be put.
func below(dir string, n int) (entries []lockmgr.Entry) {
	for i := range n {
		h := lockmgr.Holder{AcquisitionID: lockmgr.NewAcquisitionID(), Comm: "tar", Fencing: int64(1000 + i)}
		entries = append(entries, lockmgr.Entry{Key: file(fmt.Sprintf("%s/%d", dir, i)), Holder: h})
	}
	return append(entries, lockmgr.Entry{Key: tree(dir + "/e"), Holder: lockmgr.Holder{AcquisitionID: lockmgr.NewAcquisitionID()}})
}

// stand checks that entries stand with a token, and releases them.
func stand(t *testing.T, b lockmgr.Backend, s lockmgr.Session, want []lockmgr.Entry, token int64) {
	t.Helper()
	have := entries(t, b)
	for _, e := range want {
		e.Token = token
		i := slices.IndexFunc(have, func(o lockmgr.Entry) bool { return o.Grant() == e.Grant() })
		if i < 0 || !have[i].Held || have[i].Holder.Fencing != e.Holder.Fencing {
			t.Fatalf("%+v is not among %+v", e, have)
		}
		release(t, s, e.Grant())
	}
}

// The entries for what is open below a delegation are put together, whatever becomes of the
// answers. A request that arrives late puts nothing.
func TestPutBelow(t *testing.T) {
	for name, flaws := range map[string][]flaw{
		"answered":          nil,
		"lost":              {lostReply},
		"lost three times":  {lostReply, lostReply, lostReply},
		"late":              {lateRequest},
		"late, and lost":    {lateRequest, lostReply, lateRequest},
		"no space any more": {lastOne},
	} {
		t.Run(name, func(t *testing.T) {
			client, kv := flawed(t)
			b, etcd := newVolume(t, client)
			s, other := open(t, b), open(t, newBackend(t, dial(t), etcd.name))
			d := delegate(t, s, "d")
			kv.next(flaws...)
			want := below("d", 59)
			token, err := s.(lockmgr.Delegator).PutBelow(within(t, patience), d, want)
			if err != nil || token <= d.Token || !kv.broken() {
				t.Fatalf("token %d, %v", token, err)
			}
			if s.Undisturbed(file("d/e/f"), lockmgr.FencingToken(d.Token, 1), lockmgr.FencingToken(token, 1)) {
				t.Error("its own directory d/e does not count")
			}
			release(t, s, d)
			for _, k := range []lockmgr.Key{file("d/7"), file("d/e/f"), tree("d")} {
				if g, err := other.Acquire(within(t, patience), request(lockmgr.NoWait, k)); !errors.Is(err, lockmgr.ErrContended) {
					t.Errorf("%v, %v", g, err)
				}
			}
			stand(t, b, s, want, token)
			if slices.Contains(flaws, lateRequest) {
				kv.deliver(t)
			}
			if left := entries(t, b); len(left) > 0 {
				t.Errorf("%+v stand", left)
			}
			g := must(t, other, lockmgr.NoWait, file("d/e/f"))
			if g[0].Token <= token || other.Undisturbed(g[0].Key, lockmgr.FencingToken(d.Token, 1), lockmgr.FencingToken(g[0].Token, 0)) {
				t.Errorf("token %d after %d, undisturbed", g[0].Token, token)
			}
		})
	}
}

// The session's own delegation is an entry of a directory as any other, with a file open below it or
// not.
func TestOwnDelegationDisturbs(t *testing.T) {
	for _, isOpen := range []bool{false, true} {
		b, _ := newVolume(t, dial(t))
		s := open(t, b)
		before := must(t, s, lockmgr.NoWait, file("d/f"))
		if !isOpen {
			release(t, s, before...)
		}
		d := delegate(t, s, "d")
		if s.Undisturbed(file("d/f"), lockmgr.FencingToken(before[0].Token, 0), lockmgr.FencingToken(d.Token, 1)) {
			t.Errorf("undisturbed, with a file open %v", isOpen)
		}
	}
}

// What was asked for once more, and then released, is not put by the first request when that arrives
// late and the delegation stands.
func TestLatePutBelow(t *testing.T) {
	client, kv := flawed(t)
	b, _ := newVolume(t, client)
	s := open(t, b)
	d := delegate(t, s, "d")
	kv.next(lateRequest)
	want := below("d", 3)
	token, err := s.(lockmgr.Delegator).PutBelow(within(t, patience), d, want)
	if err != nil {
		t.Fatal(err)
	}
	stand(t, b, s, want, token)
	kv.deliver(t)
	if list := entries(t, b); len(list) != 1 || list[0].Grant() != d {
		t.Errorf("beside the delegation: %v", list)
	}
}

// If somebody has deleted the delegation, nothing is put, also of an attempt that was not answered.
// Entries that were put before it was deleted stand.
func TestPutBelowNothing(t *testing.T) {
	for name, test := range map[string]struct {
		flaws []flaw
		want  error
	}{
		"before":           {nil, lockmgr.ErrNotHeld},
		"before, and late": {[]flaw{lateRequest}, lockmgr.ErrNotHeld},
		"after":            {[]flaw{lostReply}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			client, kv := flawed(t)
			b, etcd := newVolume(t, client)
			s, other := open(t, b), open(t, newBackend(t, dial(t), etcd.name))
			d := delegate(t, s, "d")
			del := func() {
				if _, err := etcd.Delete(t.Context(), etcd.admin("tree/d//k/"+d.AcquisitionID.String())); err != nil {
					t.Error(err)
				}
			}
			if test.want != nil {
				del()
			}
			if test.want == nil {
				kv.then(del) // what was not answered was carried out before
			}
			kv.next(test.flaws...)
			want := below("d", 3)
			token, err := s.(lockmgr.Delegator).PutBelow(within(t, patience), d, want)
			if !errors.Is(err, test.want) || test.want == nil && err != nil {
				t.Fatal(token, err)
			}
			var left *lockmgr.LeftoverError
			if errors.As(err, &left) {
				t.Error("something may stand")
			}
			if err == nil {
				stand(t, b, s, want, token)
				return
			}
			for _, f := range test.flaws {
				if f == lateRequest {
					kv.deliver(t)
				}
			}
			if left := entries(t, b); len(left) > 0 {
				t.Errorf("%+v stand", left)
			}
			release(t, other, must(t, other, lockmgr.NoWait, tree("d"))...)
		})
	}
}

// An entry that somebody deletes, while it is not known whether it was put, takes the others with
// it, and then all can be put.
func TestPutBelowAnew(t *testing.T) {
	client, kv := flawed(t)
	b, etcd := newVolume(t, client)
	s := open(t, b)
	d := delegate(t, s, "d")
	want := below("d", 3)
	kv.then(func() {
		if _, err := etcd.Delete(t.Context(), etcd.file("d/1")+want[1].Holder.AcquisitionID.String()); err != nil {
			t.Error(err)
		}
	})
	kv.next(lostReply)
	_, err := s.(lockmgr.Delegator).PutBelow(within(t, patience), d, want)
	var left *lockmgr.LeftoverError
	if !errors.Is(err, lockmgr.ErrLockLost) || !errors.As(err, &left) {
		t.Fatal(err)
	}
	<-left.Gone
	again := below("d", 3)
	token, err := s.(lockmgr.Delegator).PutBelow(within(t, patience), d, again)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(entries(t, b)); n != 1+len(again) {
		t.Errorf("%d entries", n)
	}
	stand(t, b, s, again, token)
}

// The session ends when some entries are put, and others are on their way. Nothing is left of it,
// and what arrives late puts nothing.
func TestSessionEndsInADowngrade(t *testing.T) {
	client, kv := flawed(t)
	b, etcd := newVolume(t, client)
	s, other := open(t, b), open(t, newBackend(t, dial(t), etcd.name))
	d := delegate(t, s, "d")
	if _, err := s.(lockmgr.Delegator).PutBelow(within(t, patience), d, below("d/x", 3)); err != nil {
		t.Fatal(err)
	}
	waiter := start(within(t, patience), other, request(lockmgr.Queue, file("d/y/1")))
	kv.next(slices.Repeat([]flaw{lateRequest}, 1000)...)
	ended := make(chan error, 1)
	go func() {
		_, err := s.(lockmgr.Delegator).PutBelow(within(t, patience), d, below("d/y", 3))
		ended <- err
	}()
	eventually(t, "a request is late", func() bool {
		kv.mu.Lock()
		defer kv.mu.Unlock()
		return len(kv.late) > 0
	})
	kv.next()
	if err := b.Revoke(within(t, patience), s.ID()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, lockmgr.ErrSessionLost) && err != nil {
		t.Error(err)
	}
	kv.deliver(t)
	grants := await(t, waiter).Grants
	if have := entries(t, b); len(have) != 1 || have[0].Grant() != grants[0] {
		t.Errorf("%+v", have)
	}
}

// A delegation with 1,000 files open below it is recalled: the entries are put together, 60 in a
// Txn at least, before anybody else puts one.
func TestRecallOfManyOpenFiles(t *testing.T) {
	const files = 1000
	client, kv := flawed(t)
	b, etcd := newVolume(t, client)
	m, err := lockmgr.New(t.Context(), lockmgr.Config{
		Backend: b, Keep: time.Hour, Renew: renew.Config{TTL: time.Minute}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(within(t, patience))
	hold := func(k lockmgr.Key) *lockmgr.Hold {
		h, err := m.Acquire(within(t, patience), lockmgr.Request{Owner: "o", Keys: []lockmgr.Key{k}, Queue: true, Wait: patience})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	n := 0
	eventually(t, "d is delegated", func() bool {
		n++
		hold(file(fmt.Sprintf("d/x%d", n))).Release()
		return m.Stats().Dirs == 1
	})
	sent, began := kv.sent.Load(), time.Now()
	var holds []*lockmgr.Hold
	for i := range files {
		holds = append(holds, hold(file(fmt.Sprintf("d/%d", i))))
	}
	theirs := newBackend(t, dial(t), etcd.name)
	other := open(t, theirs)
	g := acquire(t, other, request(lockmgr.Queue, file("d/y")))[0]
	txns, took := kv.sent.Load()-sent, time.Since(began)
	if txns > files/60+10+4*int64(took/time.Second) { // some perhaps after each second, the rest, and the delete
		t.Errorf("%d Txns for %d files in %v", txns, files, took)
	} else {
		t.Logf("%d Txns for %d files in %v", txns, files, took)
	}
	n = 0
	for _, e := range entries(t, theirs) {
		if e.Grant() == g {
			continue
		}
		if n++; !e.Held || e.Token >= g.Token || e.Mode != lockmgr.Exclusive {
			t.Errorf("%+v beside %+v", e, g)
		}
	}
	if n != files {
		t.Errorf("%d entries for %d files", n, files)
	}
	for i, h := range holds {
		if token := h.Token(file(fmt.Sprintf("d/%d", i))); h.Check() != nil || token >= lockmgr.FencingToken(g.Token, 0) {
			t.Errorf("%v, token %d", h.Check(), token)
		}
		h.Release()
	}
	eventually(t, "all are released", func() bool { return len(entries(t, theirs)) == 1 })
}
