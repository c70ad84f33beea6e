package integration

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// service keeps the locks of trials: etcd, or Leases in an API server.
type service interface {
	// healthy returns when it serves.
	healthy()
	// stop makes it serve nobody, until back.
	stop() (back func())
	// outages are faults of it that no session dies of: each is over, or the
	// rest of it serves again, well within a time to live. They call goesOn when work has to.
	outages() map[string]func(goesOn func(what string))
	// restore sets its etcd back to a snapshot, or empties it if file is "".
	restore(file string, bump bool)

	// env has a mount keep its locks there.
	env() []string
	// addresses are where it listens.
	addresses() []string
	// flag has a mount find it at other addresses.
	flag(addresses []string) string

	// store is the etcd that has its history.
	store() *clientv3.Client
	// reader returns what notes an event of that history in p, if it is the volume's.
	reader(v *volume, p *past) func(*clientv3.Event) error
}

// past is what entries there were, by file and token, and the revision at which
// each was gone.
type past struct {
	entries map[string]map[int64]entry
	ends    map[string]map[int64]int64
}

func (c *cluster) env() []string { return []string{"LOCKFS_ENDPOINTS=" + strings.Join(c.urls(), ",")} }

func (c *cluster) addresses() []string {
	var hosts []string
	for _, m := range c.members {
		hosts = append(hosts, m.config.Client.Host)
	}
	return hosts
}

func (c *cluster) flag(addresses []string) string {
	return "--endpoints=http://" + strings.Join(addresses, ",http://")
}

func (c *cluster) store() *clientv3.Client { return c.client }

func (c *cluster) reader(v *volume, p *past) func(*clientv3.Event) error {
	prefix := "/locks/" + v.namespace() + "/" + filepath.Base(v.source) + "/"
	return func(e *clientv3.Event) error {
		path, ours := strings.CutPrefix(string(e.Kv.Key), prefix)
		name, _, _ := strings.Cut(path, "//")
		switch {
		case !ours || p.entries[name] == nil:
		case e.Type == mvccpb.DELETE:
			p.ends[name][e.PrevKv.CreateRevision] = e.Kv.ModRevision
		default:
			var holder entry
			if err := json.Unmarshal(e.Kv.Value, &holder); err != nil {
				return err
			}
			p.entries[name][e.Kv.CreateRevision] = holder
		}
		return nil
	}
}
