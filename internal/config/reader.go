package config

import (
	"fmt"
	"os"
)

// Reader reads a file that may change or be replaced at any time.
type Reader struct {
	path  string
	taken content // what the last Read returned
	seen  content // what was there then
}

type content struct {
	text string
	err  string // of reading it
}

// NewReader returns a Reader of the file at path.
func NewReader(path string) *Reader { return &Reader{path: path} }

// Load reads the file. It fails with the error of the operating system, or an
// *InvalidError.
func (r *Reader) Load() (*File, error) {
	f, c, err := r.read()
	r.taken, r.seen = c, c
	return f, err
}

// LoadText is Load for a text that was read from the file, perhaps long ago: Reload finds what has changed
// since.
func (r *Reader) LoadText(text string) (*File, error) {
	f, err := Parse(r.path, []byte(text))
	r.taken = content{text: text}
	r.seen = r.taken
	return f, err
}

// Text is what the last load, or Reload of a change, has read.
func (r *Reader) Text() string { return r.taken.text }

// Reload reads the file again if it has changed. A file being written may be incomplete, so a
// change counts when two calls in a row found the same.
func (r *Reader) Reload() (f *File, changed bool, err error) {
	f, c, err := r.read()
	changed = c == r.seen && c != r.taken
	r.seen = c
	if !changed {
		return nil, false, nil
	}
	r.taken = c
	return f, true, err
}

func (r *Reader) read() (*File, content, error) {
	text, err := os.ReadFile(r.path)
	if err != nil {
		err = fmt.Errorf("--config: %w", err)
		return nil, content{err: err.Error()}, err
	}
	f, err := Parse(r.path, text)
	return f, content{text: string(text)}, err
}
