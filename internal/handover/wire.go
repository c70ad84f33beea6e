package handover

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// hello is the new daemon's first message.
type hello struct {
	Format   int
	Version  string            // of the program, for people
	Settings map[string]string // what must be equal in both daemons
}

// answer is what the old daemon says to a hello.
type answer struct {
	Refused string // why; "": it sends its state
	PID     int    // for people
	State   []byte
	FDs     int // how many descriptors follow
}

// word is one of the short messages at the end.
type word struct{ Say string }

const (
	taken     = "taken"
	yours     = "yours"
	withdrawn = "withdrawn"
)

// Bounds of messages, in bytes.
const (
	maxState = 1 << 30 // a million nodes
	maxHello = 1 << 20
	maxWord  = 1 << 10
)

// maxFDs is the kernel's limit for one message.
const maxFDs = 253

// send sends a message: its length, and the gob.
func send(c *net.UnixConn, message any) error {
	var b bytes.Buffer
	b.Write(make([]byte, 4))
	if err := gob.NewEncoder(&b).Encode(message); err != nil {
		return err
	}
	binary.BigEndian.PutUint32(b.Bytes(), uint32(b.Len()-4))
	_, err := c.Write(b.Bytes())
	return err
}

// receive reads exactly one message: what follows may carry descriptors.
func receive(c *net.UnixConn, message any, most uint32) error {
	var length [4]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > most {
		return fmt.Errorf("a message of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	return gob.NewDecoder(bytes.NewReader(b)).Decode(message)
}

func sendFDs(c *net.UnixConn, fds []int) error {
	for len(fds) > 0 {
		n := min(len(fds), maxFDs)
		if _, _, err := c.WriteMsgUnix([]byte{'F'}, unix.UnixRights(fds[:n]...), nil); err != nil {
			return err
		}
		fds = fds[n:]
	}
	return nil
}

// receiveFDs returns n descriptors, which are closed on exec. After an error it has closed them.
func receiveFDs(c *net.UnixConn, n int) (fds []int, err error) {
	defer func() {
		if err != nil {
			CloseAll(fds)
		}
	}()
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	for len(fds) < n {
		var one [1]byte
		got, size, flags, _, err := c.ReadMsgUnix(one[:], oob)
		if err == nil && got == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fds, err
		}
		messages, err := unix.ParseSocketControlMessage(oob[:size])
		if err != nil {
			return fds, err
		}
		before := len(fds)
		for i := range messages {
			some, err := unix.ParseUnixRights(&messages[i])
			if err != nil {
				return fds, err
			}
			fds = append(fds, some...)
		}
		if flags&unix.MSG_CTRUNC != 0 || len(fds) == before {
			return fds, errors.New("too few descriptors are free")
		}
	}
	return fds, nil
}

// CloseAll closes descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
