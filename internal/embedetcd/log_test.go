package embedetcd

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestRelay(t *testing.T) {
	in := `{"level":"warn","msg":"slow","took":"1s"}
{"level":"warn","msg":"failed to apply request","request":"header:<ID:1 > lease_revoke:<id:2 >","error":"lease not found"}
{"level":"warn","msg":"simple token is not cryptographically signed"}
{"level":"warn","msg":"8e9e05c52164694d cannot campaign at term 1 since there are still pending configuration changes to apply"}
{"level":"fatal","msg":"failed to save","error":"no space left on device"}
goroutine 1 [running]:
{"level":"warn","msg":"after"}
` + strings.Repeat("x", maxLine+1) + "\nnot read\n"
	var log bytes.Buffer
	h := slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	r := strings.NewReader(in)
	if got, want := relay(r, slog.New(h)), "failed to save: no space left on device"; got != want {
		t.Errorf("last error %q, want %q", got, want)
	}
	want := `level=WARN msg=etcd etcd.msg=slow etcd.took=1s
level=ERROR msg=etcd etcd.msg="failed to save" etcd.error="no space left on device"
level=WARN msg=etcd etcd.msg="goroutine 1 [running]:"
level=WARN msg=etcd etcd.msg=after
`
	if log.String() != want {
		t.Errorf("logged:\n%swant:\n%s", &log, want)
	}
	if r.Len() != 0 {
		t.Errorf("%d bytes left in the pipe", r.Len())
	}
}

func TestRelayNamesThePanic(t *testing.T) {
	got := relay(strings.NewReader("panic: oh\n\ngoroutine 1 [running]:\n"), slog.New(slog.DiscardHandler))
	if got != "panic: oh" {
		t.Errorf("last error %q", got)
	}
}

func TestRelayPrefersTheCauseOfAPanic(t *testing.T) {
	in := `{"level":"panic","msg":"failed to open database","error":"invalid database"}
panic: failed to open database
`
	got := relay(strings.NewReader(in), slog.New(slog.DiscardHandler))
	if want := "failed to open database: invalid database"; got != want {
		t.Errorf("last error %q, want %q", got, want)
	}
}
