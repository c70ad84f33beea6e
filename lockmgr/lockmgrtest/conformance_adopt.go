package lockmgrtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// Adoption checks what a lockmgr.Adopter promises. newVolume returns how to make backends of one new
// volume, each as in a process of its own.
func Adoption(t *testing.T, newVolume func(t *testing.T) (process func() lockmgr.Backend)) {
	for name, test := range map[string]func(*testing.T, *adoption){
		"WhatIsClaimedStays":  testWhatIsClaimedStays,
		"EndedSession":        testEndedSession,
		"FrozenWritesNothing": testFrozenWritesNothing,
		"PlaceInLine":         testPlaceInLine,
		"Disclaimed":          testDisclaimed,
		"SeveralSessions":     testSeveralSessions,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			process := newVolume(t)
			a := &adoption{process: process, old: process()}
			a.former, a.other = Open(t, a.old, TTL), Open(t, process(), TTL)
			test(t, a)
		})
	}
}

// adoption is a volume whose session former is about to be handed on.
type adoption struct {
	process func() lockmgr.Backend
	old     lockmgr.Backend
	former  lockmgr.Session
	other   lockmgr.Session // of another mount
}

// freeze stops the former process until thaw.
func (a *adoption) freeze(t *testing.T) (thaw func()) {
	t.Helper()
	thaw, err := a.old.(lockmgr.Adopter).Freeze(Within(t, Patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(thaw)
	return thaw
}

// adopt has a new process continue the former session.
func (a *adoption) adopt(t *testing.T, claims ...lockmgr.Grant) (lockmgr.Session, lockmgr.HandedOn) {
	t.Helper()
	b := a.process().(lockmgr.Adopter)
	if err := b.Connect(Within(t, Patience)); err != nil {
		t.Fatal(err)
	}
	s, err := b.AdoptSession(Within(t, Patience), lockmgr.SessionInfo{Node: "next"}, a.former.ID(), a.former.TTL(), claims)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.(lockmgr.HandedOn).Abandon)
	if err := s.Renew(Within(t, Patience)); err != nil {
		t.Fatal(err)
	}
	return s, s.(lockmgr.HandedOn)
}

// free reports whether another mount gets a key, and gives it back.
func (a *adoption) free(t *testing.T, k lockmgr.Key) bool {
	t.Helper()
	grants, err := a.other.Acquire(Within(t, Patience), Request(lockmgr.NoWait, k))
	if err == nil {
		Release(t, a.other, grants...)
	} else if !errors.Is(err, lockmgr.ErrContended) {
		t.Fatal(err)
	}
	return err == nil
}

// What is claimed stays when the rest goes, and is released by the new process. Nothing goes before
// it says so.
func testWhatIsClaimedStays(t *testing.T, a *adoption) {
	kept, left := Must(t, a.former, lockmgr.NoWait, File("kept")), Must(t, a.former, lockmgr.NoWait, File("left"))
	a.freeze(t)
	next, adopted := a.adopt(t, kept...)
	a.former.(lockmgr.HandedOn).Abandon()
	if a.free(t, File("kept")) || a.free(t, File("left")) {
		t.Fatal("a lock is free before the new process looks for what nobody claims")
	}
	if err := adopted.RemoveUnclaimed(Within(t, Patience)); err != nil {
		t.Fatal(err)
	}
	if a.free(t, File("kept")) || !a.free(t, File("left")) {
		t.Error("what is claimed is free, or what is not is not")
	}
	if held, err := next.Held(Within(t, Patience), append(kept, left...)); err != nil || !held[0] || held[1] {
		t.Errorf("held %v, %v", held, err)
	}
	Release(t, next, kept...)
	if !a.free(t, File("kept")) {
		t.Error("what the new process has released is not free")
	}
}

// A mount hands on all its sessions, one after the other.
func testSeveralSessions(t *testing.T, a *adoption) {
	sessions := []lockmgr.Session{a.former, Open(t, a.old, TTL), Open(t, a.old, TTL)}
	a.freeze(t)
	b := a.process().(lockmgr.Adopter)
	if err := b.Connect(Within(t, Patience)); err != nil {
		t.Fatal(err)
	}
	for _, former := range sessions {
		s, err := b.AdoptSession(Within(t, Patience), lockmgr.SessionInfo{}, former.ID(), former.TTL(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.(lockmgr.HandedOn).Abandon)
		former.(lockmgr.HandedOn).Abandon()
	}
}

// A session that has ended is not adopted.
func testEndedSession(t *testing.T, a *adoption) {
	if err := a.former.Close(Within(t, Patience)); err != nil {
		t.Fatal(err)
	}
	b := a.process().(lockmgr.Adopter)
	if err := b.Connect(Within(t, Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.AdoptSession(Within(t, Patience), lockmgr.SessionInfo{}, a.former.ID(), a.former.TTL(), nil); !errors.Is(err, lockmgr.ErrSessionLost) {
		t.Errorf("a session that has ended: %v", err)
	}
}

// A frozen process gets nothing and gives nothing back, but renews. It goes on as before.
func testFrozenWritesNothing(t *testing.T, a *adoption) {
	had := Must(t, a.former, lockmgr.NoWait, File("f"))
	thaw := a.freeze(t)
	if err := a.former.Renew(Within(t, Patience)); err != nil {
		t.Errorf("a renewal: %v", err)
	}
	short := Within(t, 100*time.Millisecond)
	if _, err := a.former.Acquire(short, Request(lockmgr.Queue, File("g"))); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Errorf("Acquire: %v", err)
	}
	if err := a.former.Release(short, had[0]); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Errorf("Release: %v", err)
	}
	if a.free(t, File("f")) || !a.free(t, File("g")) {
		t.Error("something was written")
	}
	thaw()
	Release(t, a.former, had...)
	Must(t, a.former, lockmgr.Queue, File("g"))
}

// handOn has the former session wait in line behind other, and hands the request on.
func (a *adoption) handOn(t *testing.T) (held []lockmgr.Grant, req lockmgr.AcquireRequest) {
	t.Helper()
	held = Must(t, a.other, lockmgr.NoWait, File("f"))
	req = Request(lockmgr.Queue, File("f"))
	waits := make(chan struct{})
	req.Waits = func() { close(waits) }
	ctx, handOn := context.WithCancelCause(Within(t, Patience))
	stood := Start(ctx, a.former, req)
	<-waits
	handOn(lockmgr.ErrHandOn)
	if answer := Await(t, stood); !errors.Is(answer.Err, lockmgr.ErrStands) {
		t.Fatalf("handed on: %+v", answer)
	}
	req.Waits = nil
	return held, req
}

// A request that waits in line when its session is handed on keeps its place before later ones.
func testPlaceInLine(t *testing.T, a *adoption) {
	held, req := a.handOn(t)
	later := Request(lockmgr.Queue, File("f"))
	waits := make(chan struct{})
	later.Waits = func() { close(waits) }
	behind := Start(Within(t, Patience), Open(t, a.process(), TTL), later)
	<-waits
	a.freeze(t)
	next, adopted := a.adopt(t, req.Grant(File("f"), 0))
	a.former.(lockmgr.HandedOn).Abandon()
	if err := adopted.RemoveUnclaimed(Within(t, Patience)); err != nil {
		t.Fatal(err)
	}
	req.Again = true
	ctx, handOn := context.WithCancelCause(t.Context())
	handOn(lockmgr.ErrHandOn)
	for range 2 { // handed on once more before anything was heard of it
		if _, err := next.Acquire(ctx, req); !errors.Is(err, lockmgr.ErrStands) {
			t.Fatalf("handed on again: %v", err)
		}
	}
	first := Start(Within(t, Patience), next, req)
	Release(t, a.other, held...)
	got := Await(t, first)
	if got.Err != nil || got.Grants[0].AcquisitionID != req.Holder.AcquisitionID {
		t.Fatalf("who waited first got %+v", got)
	}
	select {
	case answer := <-behind:
		t.Fatalf("who waited behind got %+v", answer)
	default:
	}
	Release(t, next, got.Grants...)
	if answer := Await(t, behind); answer.Err != nil {
		t.Fatal(answer.Err)
	}
}

// A place that nobody comes for is given up.
func testDisclaimed(t *testing.T, a *adoption) {
	held, req := a.handOn(t)
	a.freeze(t)
	_, adopted := a.adopt(t, req.Grant(File("f"), 0))
	a.former.(lockmgr.HandedOn).Abandon()
	adopted.Disclaim(req.Keys, req.Mode, req.Holder.AcquisitionID)
	if err := adopted.RemoveUnclaimed(Within(t, Patience)); err != nil {
		t.Fatal(err)
	}
	Release(t, a.other, held...)
	if !a.free(t, File("f")) {
		t.Error("a place that was given up is in the way")
	}
}
