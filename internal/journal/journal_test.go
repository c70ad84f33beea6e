package journal

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
)

type thing struct {
	_    struct{} `cbor:",toarray"`
	Name string
	At   time.Time
	N    int
}

func create(t testing.TB) (*Journal, *os.File) {
	t.Helper()
	f, err := Create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	j, err := New(f)
	if err != nil {
		t.Fatal(err)
	}
	return j, f
}

func begin(t testing.TB) (*Journal, func() map[string]*Records) {
	t.Helper()
	j, f := create(t)
	return j, func() map[string]*Records {
		t.Helper()
		found, err := Read(f)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
}

// What was last put and not deleted is what is read, however often the log was written anew.
func TestRecords(t *testing.T) {
	j, read := begin(t)
	p, other := j.Part("/mnt/a"), j.Part("/mnt/b")
	if err := p.Complete(); err != nil {
		t.Fatal(err)
	}
	want := make(map[uint64]string)
	random := rand.New(rand.NewPCG(1, 2))
	halves := make(map[int]bool)
	for n := range 20_000 {
		id := random.Uint64N(300)
		if random.IntN(3) == 0 {
			p.Delete(7, id)
			delete(want, id)
		} else {
			text := strings.Repeat("x", random.IntN(200)) + fmt.Sprint(n)
			p.Put(7, id, thing{Name: text, N: n})
			want[id] = text
		}
		other.Put(7, id, thing{N: n})
		halves[j.half] = true
		if n%4000 != 3999 {
			continue
		}
		found := read()
		if found["/mnt/b"] != nil {
			t.Fatal("a part that is not complete is read")
		}
		all, err := All[thing](found["/mnt/a"], 7)
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[uint64]string)
		for id, v := range all {
			got[id] = v.Name
		}
		if !maps.Equal(got, want) {
			t.Fatalf("after %d changes: read %d records, want %d", n, len(got), len(want))
		}
	}
	if len(halves) != 2 {
		t.Error("the log was never written anew")
	}
	p.Void()
	if len(read()) != 0 {
		t.Error("a part that is over is read")
	}
}

func TestTimesAreKept(t *testing.T) {
	j, read := begin(t)
	p := j.Part("x")
	at := time.Now()
	p.Put(1, 0, thing{Name: "now", At: at})
	p.Put(2, 0, thing{})
	_ = p.Complete()
	got, err := One[thing](read()["x"], 1)
	if d := got.At.Sub(at); err != nil || d > time.Millisecond || d < -time.Millisecond {
		t.Errorf("read %v, %v; want %v", got.At, err, at)
	}
	if none, err := One[thing](read()["x"], 2); err != nil || !none.At.IsZero() {
		t.Errorf("read %v, %v; want no time", none.At, err)
	}
	if _, err := One[thing](read()["x"], 3); err == nil {
		t.Error("a record that was never put is read")
	}
}

func TestNumbersAreKept(t *testing.T) {
	j, read := begin(t)
	p := j.Part("x")
	p.Number(1, 5, 1<<63)
	p.Number(1, 5, 7)
	p.Number(1, 6, 8)
	p.Delete(1, 6)
	p.Pair(2, 9, 1, 2)
	p.Pair(2, 9, 3, 1<<63)
	_ = p.Complete()
	r := read()["x"]
	if got := r.Numbers(1); !maps.Equal(got, map[uint64]uint64{5: 7}) {
		t.Errorf("read %v", got)
	}
	if got := r.Pairs(2); !maps.Equal(got, map[uint64][2]uint64{9: {3, 1 << 63}}) {
		t.Errorf("read %v", got)
	}
}

// A part that is void stays so, also if a pause is given up and completes it again.
func TestVoidPartStaysVoid(t *testing.T) {
	j, f := create(t)
	p := j.Part("x")
	p.Put(1, 1, thing{})
	_ = p.Complete()
	p.Void()
	p.Put(1, 2, thing{})
	p.Number(2, 1, 7)
	p.Pair(3, 1, 7, 8)
	if err := p.Complete(); err != nil {
		t.Error(err)
	}
	if found, err := Read(f); err != nil || len(found) != 0 || HasParts(f) {
		t.Errorf("it is read: %v, %v, %t", found, err, HasParts(f))
	}
	if len(j.index) != 0 {
		t.Errorf("%d records count", len(j.index))
	}
	again := j.Part("x")
	again.Put(1, 1, thing{})
	_ = again.Complete()
	if found, err := Read(f); err != nil || found["x"] == nil || !HasParts(f) {
		t.Errorf("the next part of its name is not read: %v, %v", found, err)
	}
}

// Texts are read whether or not there is a part, and are none.
func TestTextsAreKept(t *testing.T) {
	j, f := create(t)
	j.Text("a", "1")
	j.Text("b", "\xff")
	j.Text("a", "2")
	got, err := Texts(f)
	if want := map[string]string{"a": "2", "b": "\xff"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("read %q, %v; want %q", got, err, want)
	}
	if parts, err := Read(f); err != nil || len(parts) != 0 || HasParts(f) {
		t.Errorf("parts: %v, %v", parts, err)
	}
}

// A journal that could not keep everything must not be taken for one that has.
func TestFullJournalIsVoid(t *testing.T) {
	j, f := create(t)
	p := j.Part("x")
	p.Put(1, 1, thing{})
	_ = p.Complete()
	told := make(chan struct{})
	j.WhenFull(func() { close(told) })
	j.mu.Lock()
	j.end, j.live = halfSize-10, halfSize-10 // as if so much were in it
	j.mu.Unlock()
	p.Put(1, 2, thing{})
	<-told
	if err := p.Complete(); !errors.Is(err, ErrFull) {
		t.Errorf("Complete: %v, want ErrFull", err)
	}
	if found, err := Read(f); err == nil {
		t.Errorf("a full journal is read: %v", found)
	}
}

// A log of which most counts is written anew when it is full.
func TestMostOfAFullHalfMayCount(t *testing.T) {
	j, f := create(t)
	p := j.Part("x")
	p.Put(1, 1, thing{})
	j.mu.Lock()
	j.end, j.live = halfSize-10, halfSize/10*6 // as if so much were in it
	j.mu.Unlock()
	p.Put(1, 2, thing{})
	if err := p.Complete(); err != nil {
		t.Error(err)
	}
	if found, err := Read(f); err != nil || len(found) != 1 {
		t.Errorf("read: %v, %v", found, err)
	}
}

func TestNilPartKeepsNothing(t *testing.T) {
	var p *Part
	p.Put(1, 1, thing{})
	p.Delete(1, 1)
	p.Void()
	if err := p.Complete(); err != nil || p.Keeps() {
		t.Error(err, p.Keeps())
	}
}

func BenchmarkPut(b *testing.B) {
	j, _ := begin(b)
	p := j.Part("x")
	for n := range b.N {
		p.Put(1, uint64(n%1000), thing{Name: "some name in a directory", N: n, At: time.Unix(1, 0)})
	}
}
