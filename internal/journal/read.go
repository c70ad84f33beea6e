package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Records are those of one part of a journal whose writer has ended.
type Records struct {
	m map[Kind]map[uint64][]byte
}

// errTorn: the file is no journal of this format, or its writer has voided it.
var errTorn = errors.New("journal: it is void, or of another format")

// Read returns the complete parts of a journal by their names. Its writer has ended.
func Read(f *os.File) (map[string]*Records, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	if st.Size != headerSize+2*halfSize {
		return nil, errTorn
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	if binary.NativeEndian.Uint64(memory) != magic {
		return nil, errTorn
	}
	half, end := 0, atomic.LoadUint64(endOf(memory))
	if end&otherHalf != 0 {
		half, end = 1, end&^otherHalf
	}
	if end > halfSize {
		return nil, errTorn
	}
	parts := make(map[uint32]*Records)
	names := make(map[uint32]string)
	complete := make(map[uint32]bool)
	for log := halfOf(memory, half)[:end]; len(log) > 0; {
		if len(log) < entrySize {
			return nil, errTorn
		}
		part, kind := binary.NativeEndian.Uint32(log), binary.NativeEndian.Uint32(log[4:])
		id, length := binary.NativeEndian.Uint64(log[8:]), binary.NativeEndian.Uint64(log[16:])
		size := (length + 7) &^ 7
		if length > halfSize || size > uint64(len(log)-entrySize) {
			return nil, errTorn
		}
		value := append([]byte{}, log[entrySize:entrySize+length]...)
		log = log[entrySize+size:]
		over := kind&deleted != 0
		switch kind &^ deleted {
		case kindName:
			names[part] = string(value)
			continue
		case kindComplete:
			complete[part] = !over
			continue
		}
		r := parts[part]
		if r == nil {
			r = &Records{m: make(map[Kind]map[uint64][]byte)}
			parts[part] = r
		}
		k := Kind(kind&^deleted - firstKind)
		if r.m[k] == nil {
			r.m[k] = make(map[uint64][]byte)
		}
		if over {
			delete(r.m[k], id)
		} else {
			r.m[k][id] = value
		}
	}
	found := make(map[string]*Records)
	for part, name := range names {
		if r := parts[part]; complete[part] && r != nil {
			found[name] = r
		}
	}
	return found, nil
}

// All returns the records of a kind by their ids.
func All[T any](r *Records, kind Kind) (map[uint64]T, error) {
	all := make(map[uint64]T, len(r.m[kind]))
	for id, b := range r.m[kind] {
		var v T
		if err := decoding.Unmarshal(b, &v); err != nil {
			return nil, fmt.Errorf("journal: a record of %T: %w", v, err)
		}
		all[id] = v
	}
	return all, nil
}

// Numbers returns the numbers of a kind by their ids.
func (r *Records) Numbers(kind Kind) map[uint64]uint64 {
	all := make(map[uint64]uint64, len(r.m[kind]))
	for id, b := range r.m[kind] {
		if len(b) == 8 {
			all[id] = binary.NativeEndian.Uint64(b)
		}
	}
	return all
}

// One returns the record of a kind of which there is one.
func One[T any](r *Records, kind Kind) (T, error) {
	all, err := All[T](r, kind)
	v, ok := all[0]
	if err == nil && !ok {
		err = fmt.Errorf("journal: there is no record of %T", v)
	}
	return v, err
}
