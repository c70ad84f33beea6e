package fs

import (
	"errors"
	"os"
	"reflect"
	"sync"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// When SIGKILL comes while the kernel copies a request into memory that was not used yet, the kernel
// cannot wait for that memory: it answers the request itself, with EIO, and no next process gets it
// (docs/adr/0070). So the buffers into which requests are read are used once before.

var errReadBuffers = errors.New("this version of go-fuse has no readPool")

// useReadBuffers uses each read buffer of a server that does not serve yet, and each later one before it
// is read into.
func useReadBuffers(s *fuse.Server) error {
	pool, err := readPool(s)
	if err != nil {
		return err
	}
	allocate := pool.New
	pool.New = nil
	var all []any // what has been used for the INIT
	for b := pool.Get(); b != nil; b = pool.Get() {
		all = append(all, b)
	}
	pool.New = func() any {
		b := allocate()
		use(b.([]byte))
		return b
	}
	for _, b := range all {
		use(b.([]byte))
		pool.Put(b)
	}
	return nil
}

func readPool(s *fuse.Server) (*sync.Pool, error) {
	field := reflect.ValueOf(s).Elem().FieldByName("readPool")
	if !field.IsValid() || field.Type() != reflect.TypeFor[sync.Pool]() {
		return nil, errReadBuffers
	}
	return (*sync.Pool)(unsafe.Pointer(field.UnsafeAddr())), nil
}

// use writes to each page of a buffer that holds nothing.
func use(b []byte) {
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 0
	}
	if len(b) > 0 {
		b[len(b)-1] = 0
	}
}
