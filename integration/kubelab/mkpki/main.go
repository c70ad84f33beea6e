// Command mkpki makes the keys, certificates and kubeconfigs of a kubelab cluster: mkpki DIR SERVER CTLIP NODE=IP...
package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "mkpki DIR SERVER CTLIP NODE=IP...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, "mkpki:", err)
		os.Exit(1)
	}
}

func run(dir, server, ctlIP string, nodes []string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ca, err := newAuthority(dir, server)
	if err != nil {
		return err
	}
	local := net.IPv4(127, 0, 0, 1)
	for _, node := range nodes {
		name, ip, _ := strings.Cut(node, "=")
		user := identity{cn: "system:node:" + name, orgs: []string{"system:nodes"}}
		serving := user
		serving.dns, serving.ips = []string{name}, []net.IP{local, net.ParseIP(ip)}
		if err := errors.Join(ca.issue(name+"-serving", serving), ca.kubeconfig(name, user)); err != nil {
			return err
		}
	}
	return errors.Join(
		ca.issue("apiserver", identity{
			cn:  "kube-apiserver",
			dns: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
			ips: []net.IP{local, net.IPv4(10, 96, 0, 1), net.ParseIP(ctlIP)},
		}),
		ca.issue("apiserver-kubelet-client", identity{cn: "kube-apiserver-kubelet-client", orgs: []string{"system:masters"}}),
		ca.kubeconfig("admin", identity{cn: "admin", orgs: []string{"system:masters"}}),
		ca.kubeconfig("kcm", identity{cn: "system:kube-controller-manager"}),
		ca.kubeconfig("scheduler", identity{cn: "system:kube-scheduler"}),
		ca.serviceAccountKey("sa"),
	)
}
