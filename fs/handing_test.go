package fs

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

// An OPEN that is handed on while it waits to send the kernel to look is not answered: its server may
// still have the kernel's connection, and the next one would open the file for nobody.
func TestHandedOnIsNotAnswered(t *testing.T) {
	if s := new(opening).parkMeant(nil, handedOn); s != handedOn {
		t.Errorf("it is answered with %v", s)
	}
}

// The library's complaint of an answer that the kernel refuses is left out in a pause alone.
func TestLibraryLogInAPause(t *testing.T) {
	var text bytes.Buffer
	var pausing atomic.Bool
	log := newLibraryLogger(slog.New(slog.NewTextHandler(&text, nil)), &pausing)
	const complaint = "writer: Write/Writev failed, err: 22=invalid argument. opcode: OPEN"
	pausing.Store(true)
	log.Print(complaint)
	if text.Len() > 0 {
		t.Errorf("in a pause: %s", &text)
	}
	log.Print("something else")
	pausing.Store(false)
	log.Print(complaint)
	if n := strings.Count(text.String(), "\n"); n != 2 {
		t.Errorf("%d lines, want 2: %s", n, &text)
	}
}

// A server whose pause was given up may still have requests: the next pause waits for them.
func TestGivenUpPauseLeavesAServer(t *testing.T) {
	c := connection{ended: make(chan struct{})}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		device, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer device.Close()
		c.serving.Store(&serving{number: int(device.Fd()), done: make(chan struct{})})
		c.pausing.Store(false) // as begin does
		if err := c.divert(); err != nil {
			t.Fatal(err)
		}
		if err := c.drain(over); !errors.Is(err, ErrBusy) {
			t.Fatalf("a pause without time: %v", err)
		}
	}
	if len(c.former) != 2 {
		t.Errorf("the next pause waits for %d servers", len(c.former))
	}
}
