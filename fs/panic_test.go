package fs

import (
	"log/slog"
	"testing"
)

// A panic in a request ends the process: the library would answer EIO and go on.
func TestPanicEndsTheProcess(t *testing.T) {
	f := &FS{}
	f.log = slog.New(slog.DiscardHandler)
	o := f.mountOptions(Config{})
	defer func() {
		if v := recover(); v != "a bug" {
			t.Errorf("the handler of panics has swallowed one: %v", v)
		}
	}()
	o.PanicHandler("a bug")
}
