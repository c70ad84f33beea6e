package kubelease_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

// BenchmarkMounts has mounts that do nothing but live, with the default TTL and a longer one, for as
// long as -benchtime says in seconds ("20x"): what the API server and the mounts have
// to do for that. Then one of them takes locks and releases them. docs/KUBERNETES.md has
// the figures.
func BenchmarkMounts(b *testing.B) {
	for _, n := range []int{10, 50, 100, 200, 400} {
		b.Run(strconv.Itoa(n), func(b *testing.B) { benchmarkMounts(b, n, 15*time.Second) })
	}
	for _, n := range []int{400, 1000} {
		b.Run(fmt.Sprintf("%d/TTL=60s", n), func(b *testing.B) { benchmarkMounts(b, n, time.Minute) })
	}
}

func benchmarkMounts(b *testing.B, n int, ttl time.Duration) {
	name, l := newName(), &link{}
	var seen feed
	var failed atomic.Int64
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var one lockmgr.Session
	var mounts, renewals sync.WaitGroup
	defer mounts.Wait()
	defer renewals.Wait()
	defer cancel()
	for range n {
		client, err := kubelease.NewClient(seen.to(l.to(as(mountUser))))
		if err != nil {
			b.Fatal(err)
		}
		backend, err := kubelease.New(kubelease.Config{Client: client, Namespace: "bench", Name: name, LeaseNamespace: space})
		if err != nil {
			b.Fatal(err)
		}
		mounts.Go(func() { <-ctx.Done(); renewals.Wait(); backend.Close() })
		var s lockmgr.Session
		for s == nil { // until the machine has time for it
			s, err = backend.OpenSession(b.Context(), lockmgr.SessionInfo{Node: fmt.Sprint("node-", n)}, ttl)
			if err != nil && b.Context().Err() != nil {
				b.Fatal(err)
			}
		}
		one = s
		renewals.Go(func() {
			defer s.Close(context.WithoutCancel(ctx))
			tick := time.After(rand.N(ttl / 5)) // as mounts that began at different times
			for {
				select {
				case <-tick:
				case <-ctx.Done():
					return
				}
				tick = time.After(ttl / 5)
				if err := s.Renew(ctx); err != nil && ctx.Err() == nil {
					failed.Add(1) // the machine has too much to do
				}
			}
		})
	}
	select { // what the beginning causes
	case <-time.After(6 * time.Second):
	case <-ctx.Done():
	}
	writes, reads := l.count("create", "update", "delete"), l.count("get", "list")
	events, bytes := seen.events.Load(), seen.bytes.Load()
	server, own := serverTime(b), ownTime(b)
	start := time.Now()
	b.ResetTimer()
	for range b.N {
		time.Sleep(time.Second)
	}
	b.StopTimer()
	secs := time.Since(start).Seconds()
	per := func(what string, n float64) { b.ReportMetric(n/secs, what) }
	per("failed/s", float64(failed.Load()))
	per("writes/s", float64(l.count("create", "update", "delete")-writes))
	per("reads/s", float64(l.count("get", "list")-reads))
	idle := float64(seen.events.Load()-events) / secs
	b.ReportMetric(idle, "events/s")
	per("KB/s", float64(seen.bytes.Load()-bytes)/1000)
	per("server-CPU", (serverTime(b) - server).Seconds())
	per("mounts-CPU", (ownTime(b) - own).Seconds())

	const locks = 100
	load := (serverTime(b) - server).Seconds() / secs
	events, server, start = seen.events.Load(), serverTime(b), time.Now()
	for i := range locks {
		g, err := one.Acquire(b.Context(), request(lockmgr.Queue, file(fmt.Sprint("f", i))))
		if err == nil {
			err = one.Release(b.Context(), g[0])
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	time.Sleep(3 * time.Second) // events may be late
	secs = time.Since(start).Seconds()
	b.ReportMetric((float64(seen.events.Load()-events)-idle*secs)/locks, "events/lock")
	b.ReportMetric(((serverTime(b)-server).Seconds()-load*secs)*1000/locks, "server-ms/lock")
	b.ReportMetric(0, "ns/op")
}

// feed counts what watches are sent.
type feed struct{ events, bytes atomic.Int64 }

func (f *feed) to(conf *rest.Config) *rest.Config {
	conf.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(req *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(req)
			if err == nil && verb(req) == "watch" {
				resp.Body = &frames{ReadCloser: resp.Body, feed: f}
			}
			return resp, err
		})
	})
	return conf
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// frames counts events: each has its length before it, in 4 bytes.
type frames struct {
	io.ReadCloser
	feed *feed
	head []byte
	left int
}

func (f *frames) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	f.feed.bytes.Add(int64(n))
	for p = p[:n]; len(p) > 0; {
		if f.left > 0 {
			k := min(f.left, len(p))
			f.left, p = f.left-k, p[k:]
			continue
		}
		f.head, p = append(f.head, p[0]), p[1:]
		if len(f.head) == 4 {
			f.left, f.head = int(binary.BigEndian.Uint32(f.head)), nil
			f.feed.events.Add(1)
		}
	}
	return n, err
}

func ownTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// serverTime is the CPU time of our children: the API server and its etcd.
func serverTime(b *testing.B) (d time.Duration) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if f[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		user, _ := strconv.Atoi(f[11])
		system, _ := strconv.Atoi(f[12])
		d += time.Duration(user+system) * 10 * time.Millisecond
	}
	return d
}
