package embedetcd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// The etcd process logs JSON lines to its stderr, a pipe; the mount turns them
// into records of its own logger.

// maxLine is the longest log line relayed, in bytes.
const maxLine = 1 << 20

// routine are complaints that etcd makes whenever it runs as it does here.
var routine = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true, // no users, no tokens
	// Until its first snapshot, etcd has no storage version to look at.
	"Failed to detect schema version": true,
	"Failed to detect storage schema version. Please wait till wal snapshot before upgrading cluster.": true,
	"failed to update storage version": true,
}

// newChildLogger returns etcd's logger: warnings and worse, three a minute of
// one kind (a slow disk has etcd complain at every request).
func newChildLogger() (*zap.Logger, zap.AtomicLevel) {
	// If the mount is frozen nobody reads the pipe; better no log than an etcd
	// that waits for it.
	_ = unix.SetNonblock(2, true)
	level := zap.NewAtomicLevelAt(zap.WarnLevel)
	enc := zapcore.NewJSONEncoder(zapcore.EncoderConfig{
		LevelKey: "level", MessageKey: "msg",
		EncodeLevel:    zapcore.LowercaseLevelEncoder,
		EncodeDuration: zapcore.StringDurationEncoder,
		EncodeTime:     zapcore.RFC3339NanoTimeEncoder,
	})
	core := zapcore.NewCore(enc, stderr{}, level)
	return zap.New(zapcore.NewSamplerWithOptions(core, time.Minute, 3, 0)), level
}

// stderr writes to descriptor 2 and drops what does not fit into the pipe.
type stderr struct{}

func (stderr) Write(b []byte) (int, error) {
	_, _ = unix.Write(2, b)
	return len(b), nil
}

func (stderr) Sync() error { return nil }

// relay logs what the etcd process writes to r, until it ends, and returns the
// last error among it.
func relay(r io.Reader, logger *slog.Logger) (lastError string) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		level, msg, attrs := parseLine(lines.Bytes())
		if routine[msg] {
			continue
		}
		isPanic := attrs == nil
		if level >= slog.LevelError && !(isPanic && lastError != "") { // etcd logs the cause, then panics
			lastError = msg
			if cause, ok := attrs["error"].(string); ok {
				lastError += ": " + cause
			}
		}
		args := []any{"msg", msg}
		for _, k := range slices.Sorted(maps.Keys(attrs)) {
			args = append(args, k, attrs[k])
		}
		logger.Log(context.Background(), level, "etcd", slog.Group("etcd", args...))
	}
	// A line too long ends the scan; the process must not block on its pipe.
	_, _ = io.Copy(io.Discard, r)
	return lastError
}

// parseLine reads a line of newChildLogger's. Anything else is the Go runtime's:
// a panic and its stack.
func parseLine(line []byte) (slog.Level, string, map[string]any) {
	var attrs map[string]any
	if err := json.Unmarshal(line, &attrs); err != nil {
		level := slog.LevelWarn
		if bytes.HasPrefix(line, []byte("panic: ")) || bytes.HasPrefix(line, []byte("fatal error: ")) {
			level = slog.LevelError
		}
		return level, string(line), nil
	}
	msg, _ := attrs["msg"].(string)
	level := slog.LevelError // error, dpanic, panic, fatal
	if attrs["level"] == "warn" {
		level = slog.LevelWarn
	}
	delete(attrs, "msg")
	delete(attrs, "level")
	return level, msg, attrs
}
