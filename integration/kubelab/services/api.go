package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"
)

// service is what is forwarded and named.
type service struct {
	namespace, name string
	ip              string // "" if headless
	ports           []port
	hosts           []host // its ready pods
}

// port is one of a Service's; its target is by EndpointSlice, which knows of
// ports by name.
type port struct {
	port   int
	target int
}

type host struct {
	name string // of a StatefulSet's pod, else ""
	ip   string
}

type api struct {
	client *http.Client
	server string
}

func newAPI(server, ca, cert, key string) (*api, error) {
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", ca)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}}
	return &api{client: &http.Client{Transport: transport, Timeout: 5 * time.Second}, server: server}, nil
}

func (a *api) get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.server+path, nil)
	if err != nil {
		return err
	}
	res, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, res.Status)
	}
	return json.NewDecoder(res.Body).Decode(into)
}

type meta struct {
	Name, Namespace string
	Labels          map[string]string
}

type serviceList struct {
	Items []struct {
		Metadata meta
		Spec     struct {
			ClusterIP string
			Ports     []struct {
				Name, Protocol string
				Port           int
			}
		}
	}
}

type sliceList struct {
	Items []struct {
		Metadata meta
		Ports    []struct {
			Name string
			Port int
		}
		Endpoints []struct {
			Addresses  []string
			Hostname   string
			Conditions struct{ Ready *bool }
		}
	}
}

// services lists all but the apiserver's own, which listens on its address.
func (a *api) services(ctx context.Context) ([]service, error) {
	var list serviceList
	if err := a.get(ctx, "/api/v1/services", &list); err != nil {
		return nil, err
	}
	var slices sliceList
	if err := a.get(ctx, "/apis/discovery.k8s.io/v1/endpointslices", &slices); err != nil {
		return nil, err
	}
	var all []service
	for _, item := range list.Items {
		s := service{namespace: item.Metadata.Namespace, name: item.Metadata.Name, ip: item.Spec.ClusterIP}
		if s.namespace == "default" && s.name == "kubernetes" {
			continue
		}
		if s.ip == "None" {
			s.ip = ""
		}
		targets := make(map[string]int)
		for _, slice := range slices.Items {
			if slice.Metadata.Namespace != s.namespace || slice.Metadata.Labels["kubernetes.io/service-name"] != s.name {
				continue
			}
			for _, p := range slice.Ports {
				targets[p.Name] = p.Port
			}
			for _, e := range slice.Endpoints {
				if ready := e.Conditions.Ready; len(e.Addresses) > 0 && (ready == nil || *ready) {
					s.hosts = append(s.hosts, host{name: e.Hostname, ip: e.Addresses[0]})
				}
			}
		}
		for _, p := range item.Spec.Ports {
			if p.Protocol == "TCP" && targets[p.Name] != 0 {
				s.ports = append(s.ports, port{port: p.Port, target: targets[p.Name]})
			}
		}
		all = append(all, s)
	}
	return all, nil
}
