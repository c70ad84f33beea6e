package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

// refusedFor checks that a mount is refused which uses another lock service, names
// both, and has changed nothing.
func refusedFor(t *testing.T, cfg Config, has lockmgr.Service) {
	t.Helper()
	before, err := os.ReadFile(filepath.Join(cfg.Source, MarkerName))
	if err != nil {
		t.Fatal(err)
	}
	var se *ServiceError
	if _, err := Check(t.Context(), cfg); !errors.As(err, &se) {
		t.Fatalf("Check = %v, want a *ServiceError", err)
	}
	asked, _ := cfg.Record.Service(t.Context())
	for _, s := range []string{has.String(), asked.String(), "lockfs move --to " + asked.String()} {
		if !strings.Contains(se.Error(), s) {
			t.Errorf("%q is not in: %v", s, se)
		}
	}
	after, err := os.ReadFile(filepath.Join(cfg.Source, MarkerName))
	if err != nil || string(after) != string(before) {
		t.Errorf("the marker was %s, now %s, %v", before, after, err)
	}
	if r := cfg.Record.(*memStore).record; r != nil {
		t.Errorf("a record was put into the other service: %s", r)
	}
}

func serviceOf(t *testing.T, s RecordStore) lockmgr.Service {
	t.Helper()
	service, err := s.Service(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return service
}

// Two mounts of one volume have one lock service.
func TestOtherService(t *testing.T) {
	for _, kind := range []string{lockmgr.KindEtcd, lockmgr.KindKubernetes, lockmgr.KindEmbedded} {
		t.Run(kind, func(t *testing.T) {
			a := &memStore{}
			cfg := config(t.TempDir(), a)
			cfg.Alone = true
			mustCheck(t, cfg)
			cfg.Record = &memStore{kind: kind}
			refusedFor(t, cfg, serviceOf(t, a))
		})
	}
}

// First mounts with many lock services at once: those of one of them are let in.
func TestFirstMountsOfManyServices(t *testing.T) {
	source := t.TempDir()
	const services, mounts = 4, 3
	var stores [services]*memStore
	var let [services]int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range stores {
		stores[i] = &memStore{}
		for range mounts {
			wg.Go(func() {
				_, err := Check(t.Context(), config(source, stores[i]))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					let[i]++
				} else if !errors.As(err, new(*ServiceError)) {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	used := 0
	for i, n := range let {
		if n > 0 {
			used++
		}
		if n != 0 && n != mounts || (stores[i].record != nil) != (n > 0) {
			t.Errorf("service %d let in %d of %d, record %s", i, n, mounts, stores[i].record)
		}
	}
	if used != 1 {
		t.Errorf("mounts were let in with %d services: %v", used, let)
	}
}

// The state of an embedded service may be lost: the next one takes its place, where
// its flock says that there is no other.
func TestEmbeddedStateIsLost(t *testing.T) {
	first := &memStore{kind: lockmgr.KindEmbedded}
	cfg := config(t.TempDir(), first)
	id := mustCheck(t, cfg)
	next := &memStore{kind: lockmgr.KindEmbedded}
	cfg.Record = next
	refusedFor(t, cfg, serviceOf(t, first)) // on a file system that other machines write to
	cfg.Alone = true
	if again := mustCheck(t, cfg); again != id {
		t.Errorf("id %s, was %s", again, id)
	}
	cfg.Record = first // a boot later, perhaps
	mustCheck(t, cfg)
	cfg.Record = &memStore{}
	refusedFor(t, cfg, serviceOf(t, first))
}

func move(cfg Config, to RecordStore) error {
	service, err := to.Service(context.Background())
	if err != nil {
		return err
	}
	return Move(context.Background(), MoveConfig{Source: cfg.Source, Record: cfg.Record, To: service})
}

// A volume moves to another service and back, while no mount of it lives.
func TestMove(t *testing.T) {
	a, b := &memStore{}, &memStore{kind: lockmgr.KindKubernetes}
	cfg := config(t.TempDir(), a)
	id := mustCheck(t, cfg)
	for round := range 3 {
		for _, s := range [][2]*memStore{{a, b}, {b, a}} {
			from, to := s[0], s[1]
			cfg.Record = from
			from.inUse = true
			if err := move(cfg, to); !errors.Is(err, errInUse) {
				t.Fatalf("while it is mounted: %v", err)
			}
			mustCheck(t, cfg)
			from.inUse = false
			wrong := cfg
			wrong.Record = &memStore{}
			if err := move(wrong, to); !errors.As(err, new(*ServiceError)) {
				t.Errorf("by a service that it has not: %v", err)
			}
			if err := move(cfg, to); err != nil {
				t.Fatal(err)
			}
			if _, err := Check(t.Context(), cfg); !errors.As(err, new(*ServiceError)) {
				t.Errorf("round %d: a mount with the former service: %v", round, err)
			}
			cfg.Record = to
			if again := mustCheck(t, cfg); again != id {
				t.Errorf("id %s, was %s", again, id)
			}
		}
	}
}

// A marker that names a former service is none to go by: it may be that of a backup,
// or a move was not finished. Nothing of it lets a mount in, until the move is
// finished by the same one.
func TestMarkerOfBeforeTheMove(t *testing.T) {
	a, b := &memStore{}, &memStore{}
	cfg := config(t.TempDir(), a)
	mustCheck(t, cfg)
	before, err := readMarker(cfg.Source)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := move(cfg, b); err != nil {
			t.Fatal(err)
		}
		if err := replaceMarker(cfg.Source, before); err != nil {
			t.Fatal(err)
		}
		var se *ServiceError
		if _, err := Check(t.Context(), cfg); !errors.As(err, &se) || !se.Moved.Is(serviceOf(t, b)) || !strings.Contains(err.Error(), serviceOf(t, b).String()) {
			t.Fatalf("Check = %v, want a *ServiceError that names where it has moved", err)
		}
		if err := move(cfg, &memStore{}); !errors.As(err, &se) {
			t.Errorf("moved to two services: %v", err)
		}
	}
	if err := move(cfg, b); err != nil {
		t.Fatal(err)
	}
	cfg.Record = b
	mustCheck(t, cfg)

	// Moved back, and the marker of the beginning restored: it names the right service.
	if err := move(cfg, a); err != nil {
		t.Fatal(err)
	}
	cfg.Record = a
	mustCheck(t, cfg)
	if err := replaceMarker(cfg.Source, before); err != nil {
		t.Fatal(err)
	}
	if _, err := Check(t.Context(), cfg); !errors.As(err, new(*ServiceError)) || !strings.Contains(err.Error(), "older") {
		t.Errorf("Check = %v, want a *ServiceError that says so", err)
	}
	if err := move(cfg, a); err != nil {
		t.Fatal(err)
	}
	mustCheck(t, cfg)
}

// A service that is gone for ever is not asked.
func TestMoveFromAServiceThatIsGone(t *testing.T) {
	cfg := config(t.TempDir(), &memStore{})
	mustCheck(t, cfg)
	former, fresh := cfg, &memStore{}
	cfg.Record = nil
	if err := move(cfg, fresh); err != nil {
		t.Fatal(err)
	}
	cfg.Record = fresh
	mustCheck(t, cfg)
	if _, err := Check(t.Context(), former); !errors.As(err, new(*ServiceError)) {
		t.Errorf("the former is back: Check = %v, want a *ServiceError", err)
	}
}

// A volume of an older format is refused until somebody has stopped its mounts and moved it,
// maybe to the service that it has. Format 1 names no service.
func TestFormerFormat(t *testing.T) {
	for former := 1; former < format; former++ {
		store := &memStore{}
		cfg := config(t.TempDir(), store)
		text := fmt.Sprintf(`{"format":1,"id":%q,"namespace":"default","name":"data"}`, uuid.New())
		if former > 1 {
			service, err := store.Service(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			text = string(identity{Format: former, ID: uuid.New(), Namespace: "default", Name: "data", Service: service}.encode())
		}
		store.record = []byte(text)
		if err := os.WriteFile(filepath.Join(cfg.Source, MarkerName), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		var old *FormatError
		if _, err := Check(t.Context(), cfg); !errors.As(err, &old) || old.Format != former {
			t.Errorf("Check = %v, want a *FormatError", err)
		}
		store.inUse = true
		if err := move(cfg, store); !errors.Is(err, errInUse) {
			t.Errorf("format %d, while it is mounted: %v", former, err)
		}
		store.inUse = false
		if err := move(cfg, store); err != nil {
			t.Fatal(err)
		}
		mustCheck(t, cfg)
		marker, err := os.ReadFile(filepath.Join(cfg.Source, MarkerName))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range [][]byte{store.record, marker} {
			if id, err := decode("it", text); err != nil || id.Format != format {
				t.Errorf("from format %d: %s, %v", former, text, err)
			}
		}
	}
}
