package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

const (
	startTimeout = 30 * time.Second
	stopTimeout  = 10 * time.Second
)

// cluster is an etcd of this run, empty at first.
type cluster struct {
	dir       string
	endpoints []string
	members   []*child
	clients   []*clientv3.Client
	volumes   int
	compacted int64  // the revision that history begins at
	idle      *usage // of an idle mount, once it was measured
}

// startCluster returns when a majority of n members answers.
func startCluster(ctx context.Context, dir string, n int) (_ *cluster, err error) {
	c := &cluster{}
	if c.dir, err = os.MkdirTemp(dir, "lockfs-bench-etcd"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w\n%s", err, c.log()), c.close())
		}
	}()
	addrs, err := freeAddrs(2 * n)
	if err != nil {
		return nil, err
	}
	var members []string
	for i := range n {
		c.endpoints = append(c.endpoints, "http://"+addrs[i])
		members = append(members, fmt.Sprintf("m%d=http://%s", i, addrs[n+i]))
	}
	for i := range n {
		name, peer, _ := strings.Cut(members[i], "=")
		arg, err := json.Marshal(memberConfig{
			Name: name, Dir: filepath.Join(c.dir, name), Client: c.endpoints[i], Peer: peer, Cluster: strings.Join(members, ","),
		})
		if err != nil {
			return nil, err
		}
		m, err := startChild("member", string(arg), filepath.Join(c.dir, name+".log"))
		if err != nil {
			return nil, err
		}
		c.members = append(c.members, m)
	}
	_, err = c.client(ctx, 0)
	return c, err
}

// client returns the i-th connection, for mounts that have their own.
func (c *cluster) client(ctx context.Context, i int) (*clientv3.Client, error) {
	for len(c.clients) <= i {
		client, err := etcdlock.Dial(ctx, etcdlock.DialConfig{Endpoints: c.endpoints, DialTimeout: startTimeout})
		if err != nil {
			return nil, err
		}
		c.clients = append(c.clients, client)
	}
	return c.clients[i], nil
}

// hangUp closes all connections but the first.
func (c *cluster) hangUp() {
	for _, client := range c.clients[1:] {
		_ = client.Close() // nothing is under way
	}
	c.clients = c.clients[:1]
}

// volume returns a name that is not in use.
func (c *cluster) volume() string {
	c.volumes++
	return fmt.Sprintf("v%d", c.volumes)
}

// revision counts etcd's commits.
func (c *cluster) revision(ctx context.Context) (int64, error) {
	resp, err := c.clients[0].Get(ctx, "none")
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// compact drops the history, so that each row finds etcd as small as the first did.
func (c *cluster) compact(ctx context.Context) error {
	rev, err := c.revision(ctx)
	if err != nil || rev == c.compacted {
		return err
	}
	c.compacted = rev
	_, err = c.clients[0].Compact(ctx, rev, clientv3.WithCompactPhysical())
	return err
}

func (c *cluster) awaitKeys(ctx context.Context, prefix string, n int64) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := c.clients[0].Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || resp.Count == n {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *cluster) log() string {
	var all strings.Builder
	for _, m := range c.members {
		all.WriteString(m.log())
	}
	return all.String()
}

func (c *cluster) close() error {
	for _, client := range c.clients {
		_ = client.Close() // nothing is under way
	}
	for _, m := range c.members {
		m.stop()
	}
	return os.RemoveAll(c.dir)
}

// freeAddrs returns addresses on which nobody listened a moment ago.
func freeAddrs(n int) ([]string, error) {
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}
