package config

import (
	"strings"

	"github.com/lockfs/lockfs/renew"
)

// complete checks the fields of a volume together, and sets defaults that depend on others.
func (p *parser) complete(v *parsed) {
	switch {
	case v.wrong["backend"] || v.wrong["endpoints"]: // what the others should be is not known
	case v.Backend == BackendEtcd:
		if len(v.Endpoints) == 0 {
			p.refuse(v.at("endpoints"), "endpoints: name those of the etcd that keeps the locks")
		}
		if v.LeaseNamespace != "" {
			p.refuse(v.at("leaseNamespace"), "leaseNamespace: only backend kubernetes has it: drop it")
		}
	case v.Backend == BackendKubernetes:
		if len(v.Endpoints) > 0 {
			p.refuse(v.at("endpoints"), "endpoints: only backend etcd has them: drop them")
		}
		if v.LeaseNamespace == "" {
			v.LeaseNamespace = v.Namespace
		}
	}
	if err := (renew.Config{TTL: v.TTL}).Validate(); err != nil && !v.wrong["ttl"] {
		p.refuse(v.at("ttl"), "ttl: %v: want whole seconds, at least %v", v.TTL, renew.MinTTL)
	}
}

// together compares the volumes: a daemon's directory in one of its views would make it wait for
// itself.
func (p *parser) together(all []parsed) {
	for i := range all {
		for j := range all {
			p.apart(&all[i], &all[j], i == j)
			if j < i {
				p.distinct(&all[i], &all[j])
			}
		}
	}
}

func (p *parser) apart(v, u *parsed, same bool) {
	switch source, mountpoint := v.Source, v.Mountpoint; {
	case source == "" || mountpoint == "" || u.Source == "" || u.Mountpoint == "": // reported already
	case within(source, u.Mountpoint):
		p.refuse(v.at("source"), "source: %s is in the view of %s at %s: name a directory outside of it", source, u.ID(), u.Mountpoint)
	case within(mountpoint, u.Source):
		p.refuse(v.at("mountpoint"), "mountpoint: %s is in the source of %s, %s: choose a directory elsewhere", mountpoint, u.ID(), u.Source)
	case !same && mountpoint != u.Mountpoint && within(mountpoint, u.Mountpoint):
		p.refuse(v.at("mountpoint"), "mountpoint: %s is in the view of %s at %s: choose a directory elsewhere", mountpoint, u.ID(), u.Mountpoint)
	}
}

func (p *parser) distinct(v, u *parsed) {
	if v.Name != "" && v.ID() == u.ID() {
		p.refuse(v.at("name"), "name: volume %s is in line %d already: drop one, or rename it", v.ID(), u.line)
	}
	if v.Mountpoint != "" && v.Mountpoint == u.Mountpoint {
		p.refuse(v.at("mountpoint"), "mountpoint: %s is that of %s in line %d already: choose another", v.Mountpoint, u.ID(), u.line)
	}
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}
