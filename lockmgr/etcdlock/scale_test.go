package etcdlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
	"github.com/lockfs/lockfs/renew"
)

// BenchmarkMounts has so many mounts of one volume on one etcd, with the default TTL: what they cost
// while they do nothing, for as long as -benchtime says in seconds ("10x"); what a lock of one of them
// costs all; and what it costs that a tenth of them dies, each of which holds 10 locks that another waits for.
// docs/PERFORMANCE.md has the figures.
func BenchmarkMounts(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) { benchmarkMounts(b, n) })
	}
}

func benchmarkMounts(b *testing.B, n int) {
	const ttl = 15 * time.Second
	name := newName()
	base := usage(b)
	clients, backends, managers := make([]*clientv3.Client, n), make([]*etcdlock.Backend, n), make([]*lockmgr.Manager, n)
	each(n, func(i int) {
		client, err := etcdlock.Dial(b.Context(), etcdlock.DialConfig{Endpoints: []string{endpoint}, DialTimeout: patience})
		if err != nil {
			b.Error(err)
			return
		}
		clients[i] = client
		backends[i], err = etcdlock.New(etcdlock.Config{Client: client, Namespace: "scale", Name: name, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Error(err)
			return
		}
		managers[i], err = lockmgr.New(b.Context(), lockmgr.Config{
			Backend: backends[i], Session: lockmgr.SessionInfo{Node: strconv.Itoa(i)}, Keep: 2 * time.Second, Renew: renew.Config{TTL: ttl, SuspendWait: ttl}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			b.Error(err)
		}
	})
	if b.Failed() {
		b.FailNow()
	}
	defer each(n, func(i int) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = managers[i].Close(ctx)
		clients[i].Close()
	})
	runtime.GC()
	idle := usage(b)
	b.ReportMetric((idle.heap-base.heap)/float64(n)/1024, "KiB/mount")
	b.ReportMetric((idle.goroutines-base.goroutines)/float64(n), "goroutines/mount")
	start := time.Now()
	for range b.N {
		time.Sleep(time.Second)
	}
	secs := time.Since(start).Seconds()
	now := usage(b)
	report := func(what string, from, to use, by float64) {
		b.ReportMetric((to.commits-from.commits)/by, what+"-commits")
		b.ReportMetric((to.events-from.events)/by, what+"-events")
		b.ReportMetric((to.bytes-from.bytes)/by/1024, what+"-KiB")
	}
	report("idle/s", idle, now, secs)
	b.ReportMetric((now.renewals-idle.renewals)/secs, "idle/s-renewals")

	const files = 50
	from := usage(b)
	for i := range files {
		lock(managers[0], fmt.Sprint("f/", i)).Release()
	}
	report("lock", from, usage(b), files)

	if n < 10 {
		b.ReportMetric(0, "ns/op")
		return
	}
	// The rack, and those that wait for it.
	rack := n / 10
	for i := range rack {
		for k := range 10 {
			lock(managers[i], fmt.Sprintf("rack/%d/%d", i, k))
		}
	}
	runtime.GC()
	from = usage(b)
	var waiters sync.WaitGroup
	for i := range rack {
		for k := range 10 {
			waiters.Go(func() { lock(managers[rack+(i*10+k)%(n-rack)], fmt.Sprintf("rack/%d/%d", i, k)).Release() })
		}
	}
	entries := func(want int) {
		until := time.Now().Add(2 * time.Minute)
		for got := -1; got != want; {
			if time.Now().After(until) {
				b.Fatalf("%d entries, want %d: the machine is too slow, and sessions were lost", got, want)
			}
			time.Sleep(50 * time.Millisecond)
			resp, err := clients[n-1].Get(b.Context(), "/locks/scale/"+name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err != nil {
				b.Fatal(err)
			}
			got = int(resp.Count)
		}
	}
	entries(2 * 10 * rack) // the holders' and the waiters'
	runtime.GC()
	waiting := usage(b)
	b.ReportMetric((waiting.heap-from.heap)/float64(10*rack)/1024, "KiB/waiter")
	sessions, err := backends[n-1].Sessions(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	dead := time.Now()
	for id, info := range sessions {
		if i, err := strconv.Atoi(info.Node); err == nil && i < rack {
			if err := backends[n-1].Revoke(b.Context(), id); err != nil {
				b.Fatal(err)
			}
		}
	}
	waiters.Wait()
	took := time.Since(dead)
	entries(0)
	report("death", waiting, usage(b), float64(10*rack))
	b.ReportMetric(took.Seconds(), "death-seconds")
	b.ReportMetric(0, "ns/op")
}

// lock is called in other goroutines too, which may not end the benchmark.
func lock(m *lockmgr.Manager, path string) *lockmgr.Hold {
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	defer cancel()
	h, err := m.Acquire(ctx, lockmgr.Request{Owner: "o", Keys: []lockmgr.Key{file(path)}, Queue: true, Wait: 10 * patience})
	if err != nil {
		panic(err)
	}
	return h
}

// each does for every number below n, some at a time.
func each(n int, do func(i int)) {
	var all sync.WaitGroup
	places := make(chan struct{}, 32)
	for i := range n {
		places <- struct{}{}
		all.Go(func() { do(i); <-places })
	}
	all.Wait()
}

// use is what etcd and this process, which are one, have had to do.
type use struct{ commits, events, bytes, renewals, heap, goroutines float64 }

func usage(b *testing.B) use {
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		b.Fatal(err)
	}
	sum := func(name string) (v float64) {
		for _, f := range families {
			if f.GetName() == name {
				for _, m := range f.Metric {
					v += m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
		return v
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	return use{
		commits:    sum("etcd_debugging_mvcc_current_revision"),
		events:     sum("etcd_debugging_mvcc_events_total"),
		bytes:      sum("etcd_network_client_grpc_sent_bytes_total") + sum("etcd_network_client_grpc_received_bytes_total"),
		renewals:   sum("etcd_debugging_lease_renewed_total"),
		heap:       float64(mem.HeapAlloc + mem.StackInuse),
		goroutines: float64(runtime.NumGoroutine()),
	}
}
