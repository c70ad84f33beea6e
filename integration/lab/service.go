package lab

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Service keeps the locks of trials: etcd, or Leases in an API server.
type Service interface {
	// healthy returns when it serves.
	Healthy()
	// stop makes it serve nobody, until back.
	Stop() (back func())
	// outages are faults that no session dies of: each ends, or the rest serves again, well within
	// a TTL. They call goesOn when work has to.
	Outages() map[string]func(goesOn func(what string))
	// restore sets its etcd back to a snapshot, or empties it if file is "".
	Restore(file string, bump bool)

	// env has a mount keep its locks there.
	Env() []string
	// addresses are where it listens.
	Addresses() []string
	// flag has a mount find it at other addresses.
	Flag(addresses []string) string

	// store is the etcd that has its history.
	Store() *clientv3.Client
	// reader returns what notes an event of that history in p, if it is the volume's.
	Reader(v *Volume, p *Past) func(*clientv3.Event) error
}

// Past is the entries there were, by file and token, and the revision at which each was gone.
type Past struct {
	Entries map[string]map[int64]Entry
	Ends    map[string]map[int64]int64

	Delegations map[int64]Delegation // by token
	PutLate     bool                 // an entry may be put below a directory that is delegated, and is put anew
}

// Delegation is a directory that was delegated to a mount, and until which revision.
type Delegation struct {
	Path, Node string
	begin, end int64
	session    string // with Leases
}

// Over reports whether a file was below the directory at a revision at which it was delegated.
func (d Delegation) Over(file string, at int64) bool {
	return strings.HasPrefix(file, d.Path+"/") && d.begin <= at && (d.end == 0 || at < d.end)
}

func (c *Cluster) Env() []string { return []string{"LOCKFS_ENDPOINTS=" + strings.Join(c.urls(), ",")} }

func (c *Cluster) Addresses() []string {
	var hosts []string
	for _, m := range c.Members {
		hosts = append(hosts, m.Config.Client.Host)
	}
	return hosts
}

func (c *Cluster) Flag(addresses []string) string {
	return "--endpoints=http://" + strings.Join(addresses, ",http://")
}

func (c *Cluster) Store() *clientv3.Client { return c.Client }

func (c *Cluster) Reader(v *Volume, p *Past) func(*clientv3.Event) error {
	volume := v.Namespace() + "/" + filepath.Base(v.Source) + "/"
	prefix, trees := "/locks/"+volume, "/lockfs/"+volume+"tree/"
	return func(e *clientv3.Event) error {
		if dir, ok := strings.CutPrefix(string(e.Kv.Key), trees); ok {
			return p.noteDirectory(dir, e)
		}
		path, ours := strings.CutPrefix(string(e.Kv.Key), prefix)
		name, _, _ := strings.Cut(path, "//")
		switch {
		case !ours || p.Entries[name] == nil:
		case e.Type == mvccpb.DELETE:
			p.Ends[name][e.PrevKv.CreateRevision] = e.Kv.ModRevision
		default:
			var holder Entry
			if err := json.Unmarshal(e.Kv.Value, &holder); err != nil {
				return err
			}
			if e.IsCreate() { // a kept entry tells of later owners as well
				p.Entries[name][e.Kv.CreateRevision] = holder
			}
		}
		return nil
	}
}

func (p *Past) noteDirectory(key string, e *clientv3.Event) error {
	path, id, _ := strings.Cut(key, "//")
	if !strings.HasPrefix(id, "k/") {
		return nil
	}
	if e.Type == mvccpb.DELETE {
		d := p.Delegations[e.PrevKv.CreateRevision]
		d.end = e.Kv.ModRevision
		p.Delegations[e.PrevKv.CreateRevision] = d
		return nil
	}
	var holder Entry
	if err := json.Unmarshal(e.Kv.Value, &holder); err != nil {
		return err
	}
	if e.IsCreate() {
		p.Delegations[e.Kv.CreateRevision] = Delegation{Path: path, Node: holder.Node, begin: e.Kv.CreateRevision}
	}
	return nil
}
