package journal

import (
	"bytes"
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
	parts := make(map[uint32]*Records)
	names := make(map[uint32]string)
	complete := make(map[uint32]bool)
	err := scan(f, func(k key, over bool, value []byte) {
		switch k.kind {
		case kindName:
			if names[k.part] = string(value); over {
				delete(names, k.part)
			}
			return
		case kindComplete:
			complete[k.part] = !over
			return
		case kindText:
			return
		}
		r := parts[k.part]
		if r == nil {
			r = &Records{m: make(map[Kind]map[uint64][]byte)}
			parts[k.part] = r
		}
		kind := Kind(k.kind - firstKind)
		if r.m[kind] == nil {
			r.m[kind] = make(map[uint64][]byte)
		}
		if over {
			delete(r.m[kind], k.id)
		} else {
			r.m[kind][k.id] = bytes.Clone(value)
		}
	})
	if err != nil {
		return nil, err
	}
	found := make(map[string]*Records)
	for part, name := range names {
		if r := parts[part]; complete[part] && r != nil {
			found[name] = r
		}
	}
	return found, nil
}

// Texts returns what was recorded by Journal.Text, by name.
func Texts(f *os.File) (map[string]string, error) {
	texts := make(map[string]string)
	var failed error
	err := scan(f, func(k key, _ bool, value []byte) {
		if k.kind != kindText {
			return
		}
		var t [2]string
		if err := decoding.Unmarshal(value, &t); err != nil {
			failed = fmt.Errorf("journal: a text: %w", err)
		}
		texts[t[0]] = t[1]
	})
	return texts, errors.Join(err, failed)
}

// HasParts reports whether Read would return anything, at a fraction of the cost.
func HasParts(f *os.File) bool {
	named, complete := make(map[uint32]bool), make(map[uint32]bool)
	err := scan(f, func(k key, over bool, _ []byte) {
		switch k.kind {
		case kindName:
			named[k.part] = !over
		case kindComplete:
			complete[k.part] = !over
		}
	})
	for part, is := range complete {
		if is && named[part] && err == nil {
			return true
		}
	}
	return false
}

// scan calls visit for each record in the log, in order. over: it is the end of one. value is valid
// during the call.
func scan(f *os.File, visit func(k key, over bool, value []byte)) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if st.Size != headerSize+2*halfSize {
		return errTorn
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	if binary.NativeEndian.Uint64(memory) != magic {
		return errTorn
	}
	half, end := 0, atomic.LoadUint64(endOf(memory))
	if end&otherHalf != 0 {
		half, end = 1, end&^otherHalf
	}
	if end > halfSize {
		return errTorn
	}
	for log := halfOf(memory, half)[:end]; len(log) > 0; {
		if len(log) < entrySize {
			return errTorn
		}
		kind, length := binary.NativeEndian.Uint32(log[4:]), binary.NativeEndian.Uint64(log[16:])
		size := (length + 7) &^ 7
		if length > halfSize || size > uint64(len(log)-entrySize) {
			return errTorn
		}
		k := key{binary.NativeEndian.Uint32(log), kind &^ deleted, binary.NativeEndian.Uint64(log[8:])}
		visit(k, kind&deleted != 0, log[entrySize:entrySize+length])
		log = log[entrySize+size:]
	}
	return nil
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

// Pairs returns the pairs of numbers of a kind by their ids.
func (r *Records) Pairs(kind Kind) map[uint64][2]uint64 {
	all := make(map[uint64][2]uint64, len(r.m[kind]))
	for id, b := range r.m[kind] {
		if len(b) == 16 {
			all[id] = [2]uint64{binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:])}
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
