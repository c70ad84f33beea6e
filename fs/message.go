package fs

import (
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// message returns the bytes of a request with names.
func message[T any](in *T, names ...string) []byte {
	b := raw(in)
	for _, name := range names {
		b = append(append(b, name...), 0)
	}
	(*fuse.InHeader)(unsafe.Pointer(&b[0])).Length = uint32(len(b))
	return b
}

// renaming returns the bytes of a RENAME, whose message is shorter than the library's, as RENAME2.
func renaming(in *fuse.RenameIn, from, to string) []byte {
	const opcode = 45 // FUSE_RENAME2
	b := message(in, from, to)
	(*fuse.InHeader)(unsafe.Pointer(&b[0])).Opcode = opcode
	return b
}
