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
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// The etcd process logs JSON lines to its stderr, a pipe; the mount turns them
// into records of its own logger.

// maxLine is the longest log line relayed, in bytes.
const maxLine = 1 << 20

// routine are warnings of etcd that are normal here.
var routine = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true, // there are no users here
	// etcd has no storage version before its first snapshot.
	"Failed to detect schema version": true,
	"Failed to detect storage schema version. Please wait till wal snapshot before upgrading cluster.": true,
	"failed to update storage version": true,
}

// campaignsEarly: at its first start etcd has not applied its own membership yet. It tries again.
func campaignsEarly(msg string) bool {
	return strings.HasSuffix(msg, " cannot campaign at term 1 since there are still pending configuration changes to apply")
}

// revokedTwice: the lease of a mount that ends is gone by the time of the revoke.
func revokedTwice(msg string, attrs map[string]any) bool {
	request, _ := attrs["request"].(string)
	return msg == "failed to apply request" && attrs["error"] == "lease not found" && strings.Contains(request, "lease_revoke:")
}

// newChildLogger logs warnings and errors, at most three a minute of one kind: with a slow disk
// etcd warns at every request.
func newChildLogger() *zap.Logger {
	// If the mount is frozen nobody reads the pipe. Losing log lines is better than blocking etcd.
	_ = unix.SetNonblock(2, true)
	enc := zapcore.NewJSONEncoder(zapcore.EncoderConfig{
		LevelKey: "level", MessageKey: "msg",
		EncodeLevel:    zapcore.LowercaseLevelEncoder,
		EncodeDuration: zapcore.StringDurationEncoder,
		EncodeTime:     zapcore.RFC3339NanoTimeEncoder,
	})
	core := zapcore.NewCore(enc, stderr{}, zap.WarnLevel)
	return zap.New(zapcore.NewSamplerWithOptions(core, time.Minute, 3, 0))
}

// stderr writes to descriptor 2 and drops what does not fit into the pipe.
type stderr struct{}

func (stderr) Write(b []byte) (int, error) {
	_, _ = unix.Write(2, b)
	return len(b), nil
}

func (stderr) Sync() error { return nil }

// relay logs what the etcd process writes, and returns the last error in it.
func relay(r io.Reader, logger *slog.Logger) (lastError string) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		level, msg, attrs := parseLine(lines.Bytes())
		if routine[msg] || campaignsEarly(msg) || revokedTwice(msg, attrs) {
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
	// A line that is too long ends the scan. Drain the pipe, so that the process does not block.
	_, _ = io.Copy(io.Discard, r)
	return lastError
}

// parseLine parses a line of newChildLogger. Other lines are a panic of the Go runtime.
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
