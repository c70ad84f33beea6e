// Package journal keeps records in memory that outlives the process that writes them: a memfd, which
// another process has open too. When the writer dies, at any instruction, the other process reads
// what was last written of each record.
//
// The file is a log in two halves. A record is appended, and counts once the log's end, one word, is
// behind it. When a half is full of what is outdated, what counts is written to the other half, and
// one store of the word makes that one the log.
package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/fxamacker/cbor/v2"
	"golang.org/x/sys/unix"
)

// Format is the version of what the records are. A program reads no other one's.
const Format = 6

const (
	magic      = 0x6c6f636b66730000 | Format
	headerSize = 4096
	entrySize  = 24       // part, kind, id, length
	halfSize   = 1 << 29  // bytes; memory is used only for what is written
	slack      = 64 << 10 // outdated bytes up to which a log is not written anew
	deleted    = 1 << 31  // in the kind: the record is over
	otherHalf  = 1 << 63  // in the end: the log is in the second half
)

// ErrFull: the records need more room than there is. Nothing that is in the journal counts any more.
var ErrFull = errors.New("the journal is full")

var encoding = func() cbor.EncMode {
	m, err := cbor.EncOptions{Time: cbor.TimeUnixMicro}.EncMode()
	if err != nil {
		panic(err)
	}
	return m
}()

// Paths are any bytes.
var decoding = func() cbor.DecMode {
	m, err := cbor.DecOptions{UTF8: cbor.UTF8DecodeInvalid}.DecMode()
	if err != nil {
		panic(err)
	}
	return m
}()

// Create returns the file of a new journal. It has no name.
func Create() (*os.File, error) {
	fd, err := unix.MemfdCreate("lockfs-journal", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	f := os.NewFile(uintptr(fd), "journal")
	if err := f.Truncate(headerSize + 2*halfSize); err != nil {
		f.Close()
		return nil, fmt.Errorf("journal: %w", err)
	}
	return f, nil
}

type key struct {
	part, kind uint32
	id         uint64
}

// entry is where the last record of a key is.
type entry struct{ at, size int }

// Journal is a journal that this process writes. It is safe for concurrent use.
type Journal struct {
	memory []byte

	mu    sync.Mutex
	half  int           // GUARDED_BY(mu); where the log is: 0 or 1
	end   int           // GUARDED_BY(mu); of the log, in its half
	index map[key]entry // GUARDED_BY(mu); what counts
	live  int           // GUARDED_BY(mu); bytes of what counts
	parts uint32        // GUARDED_BY(mu); how many there are
	texts []string      // GUARDED_BY(mu); names, by id
	full  bool          // GUARDED_BY(mu)
	told  []func()      // GUARDED_BY(mu); see WhenFull
}

// New begins the journal of a file that Create has returned, perhaps in another process.
func New(f *os.File) (*Journal, error) {
	memory, err := unix.Mmap(int(f.Fd()), 0, headerSize+2*halfSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	j := &Journal{memory: memory, index: make(map[key]entry)}
	binary.NativeEndian.PutUint64(memory, magic)
	return j, nil
}

func endOf(memory []byte) *uint64 { return (*uint64)(unsafe.Pointer(&memory[8])) }

func halfOf(memory []byte, half int) []byte {
	return memory[headerSize+half*halfSize:][:halfSize]
}

func (j *Journal) put(k key, value []byte) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.append(k, value)
}

// append appends a record; nil: the end of one. j.mu is held.
func (j *Journal) append(k key, value []byte) error {
	was, had := j.index[k]
	if value == nil && !had {
		return nil
	}
	size := entrySize + (len(value)+7)&^7
	// Also if most of a full half counts: what is outdated must not make the journal void.
	if j.end+size > min(j.live+j.live+slack, halfSize) {
		if err := j.rewrite(size); err != nil {
			return err
		}
		was = j.index[k]
	}
	if j.full || j.end+size > halfSize {
		j.void()
		return ErrFull
	}
	kind := k.kind
	if value == nil {
		kind |= deleted
	}
	at := write(halfOf(j.memory, j.half)[j.end:], k, kind, value) + j.end
	j.end += size
	j.publish()
	if had {
		j.live -= entrySize + (was.size+7)&^7
	}
	if value == nil {
		delete(j.index, k)
		return nil
	}
	j.live += size
	j.index[k] = entry{at, len(value)}
	return nil
}

func write(to []byte, k key, kind uint32, value []byte) (at int) {
	binary.NativeEndian.PutUint32(to, k.part)
	binary.NativeEndian.PutUint32(to[4:], kind)
	binary.NativeEndian.PutUint64(to[8:], k.id)
	binary.NativeEndian.PutUint64(to[16:], uint64(len(value)))
	copy(to[entrySize:], value)
	return entrySize
}

// publish makes the log end where it does now. j.mu is held.
func (j *Journal) publish() {
	end := uint64(j.end)
	if j.half == 1 {
		end |= otherHalf
	}
	atomic.StoreUint64(endOf(j.memory), end)
}

// room is what a log that was written anew must have, so that it is not written anew all the time.
const room = halfSize / 16

// rewrite writes what counts to the other half, if that leaves room for more than size bytes. j.mu is
// held.
func (j *Journal) rewrite(size int) error {
	if j.live+size+room > halfSize {
		j.void()
		return ErrFull
	}
	from, to := halfOf(j.memory, j.half), halfOf(j.memory, 1-j.half)
	end := 0
	for k, e := range j.index {
		value := from[e.at : e.at+e.size]
		at := end + write(to[end:], k, k.kind, value)
		j.index[k] = entry{at, e.size}
		end += entrySize + (e.size+7)&^7
	}
	j.half, j.end = 1-j.half, end
	j.publish()
	_ = unix.Madvise(from, unix.MADV_REMOVE) // its memory
	return nil
}

// void makes the journal worthless: what it says is not all. j.mu is held.
func (j *Journal) void() {
	if !j.full {
		for _, tell := range j.told {
			go tell()
		}
	}
	j.full = true
	binary.NativeEndian.PutUint64(j.memory, 0)
}

// WhenFull has tell called when the journal becomes full: put's callers do not look.
func (j *Journal) WhenFull(tell func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.told = append(j.told, tell)
}

// Text records a text by its name, in place of the former one. It belongs to no part.
func (j *Journal) Text(name, text string) {
	j.mu.Lock()
	id := slices.Index(j.texts, name)
	if id < 0 {
		id = len(j.texts)
		j.texts = append(j.texts, name)
	}
	j.mu.Unlock()
	b, err := encoding.Marshal([]string{name, text})
	if err != nil {
		panic(err) // strings can be encoded
	}
	_ = j.put(key{0, kindText, uint64(id)}, b)
}

// Part is the records of one mount. A nil Part keeps nothing.
type Part struct {
	j    *Journal
	id   uint32
	over bool // GUARDED_BY(j.mu); see Void
}

// The kinds below firstKind are the package's own.
const (
	kindName = iota
	kindComplete
	kindText // of no part
	firstKind
)

// Kind is a kind of record.
type Kind uint32

// Part begins the records of what has the name. They do not count before Complete.
func (j *Journal) Part(name string) *Part {
	j.mu.Lock()
	j.parts++
	p := &Part{j: j, id: j.parts}
	j.mu.Unlock()
	_ = p.put(kindName, 0, []byte(name))
	return p
}

// put is the journal's, for a part that is not void.
func (p *Part) put(kind uint32, id uint64, value []byte) error {
	p.j.mu.Lock()
	defer p.j.mu.Unlock()
	if p.over {
		return nil
	}
	return p.j.append(key{p.id, kind, id}, value)
}

// Complete says that the part's records are all that there is to know. What is known by the same
// name in an earlier journal does not count any more.
func (p *Part) Complete() error {
	if p == nil {
		return nil
	}
	return p.put(kindComplete, 0, []byte{1})
}

// Withdraw undoes Complete.
func (p *Part) Withdraw() {
	if p != nil {
		_ = p.put(kindComplete, 0, nil)
	}
}

// Void ends the part: it is as if it had never been, whatever is put, or completed, later.
func (p *Part) Void() {
	if p == nil {
		return
	}
	p.j.mu.Lock()
	p.over = true
	_ = p.j.append(key{p.id, kindComplete, 0}, nil)
	var keys []key
	for k := range p.j.index {
		if k.part == p.id {
			keys = append(keys, k)
		}
	}
	p.j.mu.Unlock()
	for _, k := range keys {
		_ = p.j.put(k, nil)
	}
}

// Keeps reports whether the part keeps anything.
func (p *Part) Keeps() bool { return p != nil }

// Put writes a record in place of the former one. If the journal is full, nothing in it counts any
// more.
func (p *Part) Put(kind Kind, id uint64, value any) {
	if p == nil {
		return
	}
	b, err := encoding.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("journal: a record of %T: %v", value, err)) // a mistake in the type
	}
	_ = p.put(firstKind+uint32(kind), id, b)
}

// Number is Put for a number, at a fraction of the cost. Numbers reads it.
func (p *Part) Number(kind Kind, id, value uint64) {
	if p == nil {
		return
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], value)
	_ = p.put(firstKind+uint32(kind), id, b[:])
}

// Pair is Number for two numbers. Pairs reads them.
func (p *Part) Pair(kind Kind, id, first, second uint64) {
	if p == nil {
		return
	}
	var b [16]byte
	binary.NativeEndian.PutUint64(b[:], first)
	binary.NativeEndian.PutUint64(b[8:], second)
	_ = p.put(firstKind+uint32(kind), id, b[:])
}

// Delete ends a record.
func (p *Part) Delete(kind Kind, id uint64) {
	if p == nil {
		return
	}
	_ = p.put(firstKind+uint32(kind), id, nil)
}
