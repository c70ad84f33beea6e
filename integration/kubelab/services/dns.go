package main

import (
	"log"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"

	"golang.org/x/net/dns/dnsmessage"
)

const domain = ".svc.cluster.local."

// names is what DNS knows: addresses by full name.
type names struct {
	known atomic.Pointer[map[string][]netip.Addr]
}

func (n *names) set(services []service) {
	known := make(map[string][]netip.Addr)
	add := func(name, ip string) {
		if a, err := netip.ParseAddr(ip); err == nil && a.Is4() {
			known[name] = append(known[name], a)
		}
	}
	add("kubernetes.default"+domain, "10.96.0.1")
	for _, s := range services {
		base := s.name + "." + s.namespace + domain
		if s.ip != "" {
			add(base, s.ip)
		}
		for _, h := range s.hosts {
			if s.ip == "" {
				add(base, h.ip)
			}
			if h.name != "" {
				add(h.name+"."+base, h.ip)
			}
		}
	}
	n.known.Store(&known)
}

func serveDNS(addr string, n *names) (net.PacketConn, error) {
	conn, err := net.ListenPacket("udp", addr)
	if err != nil {
		return nil, err
	}
	go func() {
		buf := make([]byte, 4096)
		for {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			reply, err := n.answer(buf[:size])
			if err != nil {
				log.Print("DNS: ", err)
				continue
			}
			_, _ = conn.WriteTo(reply, from)
		}
	}()
	return conn, nil
}

// answer answers a query: A records of what is known, nothing else.
func (n *names) answer(query []byte) ([]byte, error) {
	var p dnsmessage.Parser
	header, err := p.Start(query)
	if err != nil {
		return nil, err
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	if known := n.known.Load(); known != nil {
		addrs = (*known)[strings.ToLower(q.Name.String())]
	}
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired, RecursionAvailable: true},
		Questions: []dnsmessage.Question{q},
	}
	if addrs == nil {
		reply.RCode = dnsmessage.RCodeNameError
	}
	if q.Type == dnsmessage.TypeA {
		for _, a := range addrs {
			reply.Answers = append(reply.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: 1},
				Body:   &dnsmessage.AResource{A: a.As4()},
			})
		}
	}
	return reply.Pack()
}
