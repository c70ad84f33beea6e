package volume

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
)

// memStore is the record in a lock service, by the rules of RecordStore.
type memStore struct {
	mu      sync.Mutex
	record  []byte          // GUARDED_BY(mu)
	service lockmgr.Service // GUARDED_BY(mu)
	kind    string          // of service; etcd if empty
	inUse   bool            // a mount lives

	enforced []string          // by all mounts that live
	admits   func([]byte) bool // of the last mount
}

func (s *memStore) Service(context.Context) (lockmgr.Service, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.service.ID == uuid.Nil {
		s.service = lockmgr.Service{Kind: cmp.Or(s.kind, lockmgr.KindEtcd), ID: uuid.New(), At: "memory"}
	}
	return s.service, nil
}

func (s *memStore) VolumeRecord(_ context.Context, want []byte, admits func([]byte) bool) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record == nil {
		s.record = want
	}
	s.admits = admits
	return s.record, nil
}

func (s *memStore) ReplaceVolumeRecord(_ context.Context, old, want []byte, policy string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inUse && !slices.Contains(s.enforced, policy) || !bytes.Equal(s.record, old) {
		return errInUse
	}
	s.record = want
	return nil
}

var errInUse = errors.New("in use")

// downStore is a lock service that does not answer.
type downStore struct{ err error }

func (s downStore) Service(context.Context) (lockmgr.Service, error) {
	return lockmgr.Service{}, s.err
}

func (s downStore) VolumeRecord(context.Context, []byte, func([]byte) bool) ([]byte, error) {
	return nil, s.err
}

func (s downStore) ReplaceVolumeRecord(context.Context, []byte, []byte, string) error { return s.err }

var noRules = (*policy.Policy)(nil).Digest(policy.FlockLocal)

func config(source string, store RecordStore) Config {
	return Config{Source: source, Namespace: "default", Name: "data", Policies: []string{noRules}, Record: store}
}

func mustCheck(t *testing.T, cfg Config) uuid.UUID {
	t.Helper()
	id, err := Check(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// names returns what is in dir.
func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestFirstAndLaterMounts(t *testing.T) {
	cfg := config(t.TempDir(), &memStore{})
	id := mustCheck(t, cfg)
	if again := mustCheck(t, cfg); again != id || id == uuid.Nil {
		t.Errorf("ids %s, then %s", id, again)
	}
	if got := names(t, cfg.Source); len(got) != 1 || got[0] != MarkerName {
		t.Errorf("SOURCE has %q", got)
	}
	if fi, err := os.Stat(filepath.Join(cfg.Source, MarkerName)); err != nil || fi.Mode() != 0o644 {
		t.Errorf("marker: %v, %v", fi, err)
	}
}

func TestWipedLockService(t *testing.T) {
	cfg := config(t.TempDir(), &memStore{})
	id := mustCheck(t, cfg)
	fresh := cfg.Record.(*memStore)
	fresh.record = nil // its id alone is still there
	if again := mustCheck(t, cfg); again != id {
		t.Errorf("id %s, was %s", again, id)
	}
	if !strings.Contains(string(fresh.record), id.String()) {
		t.Errorf("record put again: %s", fresh.record)
	}
}

func TestUnreachableLockService(t *testing.T) {
	source, down := t.TempDir(), errors.New("down")
	if _, err := Check(t.Context(), config(source, downStore{down})); !errors.Is(err, down) {
		t.Fatalf("Check = %v, want the store's error", err)
	}
	mustCheck(t, config(source, &memStore{}))
}

func TestMismatch(t *testing.T) {
	tests := map[string]struct {
		change func(t *testing.T, cfg *Config)
		field  string
		says   []string // in the message
	}{
		"another name": {
			func(_ *testing.T, cfg *Config) { cfg.Name = "Data" }, "name", []string{`"data"`, `"Data"`, "--name=data"},
		},
		"another namespace": {
			func(_ *testing.T, cfg *Config) { cfg.Namespace = "prod" }, "namespace", []string{`"default"`, `"prod"`, "--namespace=default"},
		},
		"a directory without marker": {
			func(t *testing.T, cfg *Config) { cfg.Source = t.TempDir() }, "volume id", []string{"no marker", "default/data"},
		},
		"another volume's directory": {
			func(t *testing.T, cfg *Config) {
				other := config(t.TempDir(), &memStore{service: cfg.Record.(*memStore).service})
				mustCheck(t, other)
				cfg.Source = other.Source
			}, "volume id", []string{"marker", "default/data"},
		},
		"the record of a wrong name": {
			func(_ *testing.T, cfg *Config) {
				s := cfg.Record.(*memStore)
				s.record = []byte(strings.Replace(string(s.record), `"data"`, `"other"`, 1))
			}, "name", []string{"data", "other"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := config(t.TempDir(), &memStore{})
			mustCheck(t, cfg)
			test.change(t, &cfg)
			before := names(t, cfg.Source)
			id, err := Check(t.Context(), cfg)
			var me *MismatchError
			if !errors.As(err, &me) || me.Field != test.field || me.Source != cfg.Source {
				t.Fatalf("Check = %s, %v, want a *MismatchError of the %s", id, err, test.field)
			}
			for _, s := range test.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q is not in: %v", s, err)
				}
			}
			t.Log(err)
			if after := names(t, cfg.Source); fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("SOURCE had %q, now %q", before, after)
			}
		})
	}
}

func TestInvalidRecord(t *testing.T) {
	for name, record := range map[string]string{"newer": `{"format":6}`, "damaged": "{"} {
		t.Run(name, func(t *testing.T) {
			source := t.TempDir()
			_, err := Check(t.Context(), config(source, &memStore{record: []byte(record)}))
			var ie *InvalidError
			if !errors.As(err, &ie) || errors.Is(err, ErrNewer) != (name == "newer") {
				t.Errorf("Check = %v, want an *InvalidError", err)
			}
			if got := names(t, source); len(got) != 0 {
				t.Errorf("the marker just created is still there: %q", got)
			}
		})
	}
}

func TestFirstMountsRace(t *testing.T) {
	store, source := &memStore{}, t.TempDir()
	const mounts = 16
	var ids [mounts]uuid.UUID
	var wg sync.WaitGroup
	for i := range mounts {
		wg.Go(func() {
			var err error
			if ids[i], err = Check(t.Context(), config(source, store)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] || id == uuid.Nil {
			t.Fatalf("ids differ: %v", ids)
		}
	}
	if got := names(t, source); len(got) != 1 {
		t.Errorf("SOURCE has %q", got)
	}
}

// Two directories are mounted under one name at once: one gets it.
func TestOneNameRace(t *testing.T) {
	store := &memStore{}
	const mounts = 8
	sources := make([]string, mounts)
	errs := make([]error, mounts)
	var wg sync.WaitGroup
	for i := range mounts {
		sources[i] = t.TempDir()
		wg.Go(func() { _, errs[i] = Check(t.Context(), config(sources[i], store)) })
	}
	wg.Wait()
	won := 0
	for i, err := range errs {
		var me *MismatchError
		switch marked := len(names(t, sources[i])) == 1; {
		case err == nil && marked:
			won++
		case errors.As(err, &me) && !marked:
		default:
			t.Errorf("mount %d: %v, marker %v", i, err, marked)
		}
	}
	if won != 1 {
		t.Errorf("%d mounts have the name", won)
	}
}

func TestReadOnlySource(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	source, store := t.TempDir(), &memStore{}
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("", source, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount(source, source, "", unix.MS_BIND, ""); err != nil {
		t.Skip("no mounts here:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(source, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	remount(unix.MS_RDONLY)
	_, err := Check(t.Context(), config(source, store))
	if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("Check = %v, want EROFS", err)
	}
	t.Log(err)
	remount(0)
	id := mustCheck(t, config(source, store))
	remount(unix.MS_RDONLY)
	if again := mustCheck(t, config(source, store)); again != id {
		t.Errorf("read-only, with a marker: id %s, was %s", again, id)
	}
}
