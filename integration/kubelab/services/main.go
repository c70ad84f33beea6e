// Command services gives a kubelab cluster what kube-proxy and CoreDNS give others: addresses of Services, for TCP, and
// their names. It runs beside the control plane, where the nodes' default route leads, and forwards connections itself:
// no rules in a kernel that all nodes share, and a node that is cut off is cut off from Services too.
//
//	pod ── 10.96.0.10:53 ──► dns.go     svc.ns.svc.cluster.local → its address; headless: its pods
//	pod ── 10.96.x.y:port ─► proxy.go   → one of the Service's ready pods
//	                         api.go     ◄ Services and EndpointSlices, asked for a few times a second
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

const (
	period = 300 * time.Millisecond
	dnsIP  = "10.96.0.10"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "services APISERVER PKI-DIRECTORY")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, server, pki string) error {
	api, err := newAPI(server, filepath.Join(pki, "ca.crt"), filepath.Join(pki, "admin.crt"), filepath.Join(pki, "admin.key"))
	if err != nil {
		return err
	}
	if err := addAddress(dnsIP); err != nil {
		return err
	}
	var names names
	dns, err := serveDNS(dnsIP+":53", &names)
	if err != nil {
		return err
	}
	defer dns.Close()
	proxy := newProxy()
	defer proxy.close()
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		switch services, err := api.services(ctx); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			log.Print(err) // the apiserver is away: what was known goes on
		default:
			names.set(services)
			proxy.set(services)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
