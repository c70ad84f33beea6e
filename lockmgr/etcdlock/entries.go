package etcdlock

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// Entries is one linearizable read. Errors: ErrInvalidKey; ErrUnavailable, wrapping ctx's.
func (b *Backend) Entries(ctx context.Context, prefix string) ([]lockmgr.Entry, error) {
	if prefix != "" {
		if _, err := lockmgr.FileKey(prefix); err != nil {
			return nil, err
		}
	}
	resp, err := b.txn(ctx, nil, []clientv3.Op{
		clientv3.OpGet(b.keys.filesFrom(prefix), clientv3.WithPrefix()),
		clientv3.OpGet(b.keys.trees(), clientv3.WithPrefix()), // and directories above
		clientv3.OpGet(b.keys.inodes(), clientv3.WithPrefix()),
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("listing locks: %w", err)
	}
	files := b.listed(resp.Responses[0].GetResponseRange().Kvs)
	trees := b.listed(resp.Responses[1].GetResponseRange().Kvs)
	inodes := b.listed(resp.Responses[2].GetResponseRange().Kvs)
	markHeld(files, trees)
	markHeld(inodes, nil)
	var entries []lockmgr.Entry
	for _, l := range slices.Concat(files, trees, inodes) {
		entries = append(entries, l.Entry)
	}
	return lockmgr.Listing(entries, prefix), nil
}

// Rivals is one linearizable read. Errors: ErrUnavailable, wrapping ctx's.
func (b *Backend) Rivals(ctx context.Context, k lockmgr.Key) ([]lockmgr.Entry, error) {
	gets := []clientv3.Op{clientv3.OpGet(b.keys.rivals(k, lockmgr.Exclusive), clientv3.WithPrefix())}
	around, ok := b.keys.around(k)
	if !ok || len(around) >= maxGets {
		around = []string{b.keys.trees()}
	}
	for _, p := range around {
		gets = append(gets, clientv3.OpGet(p, clientv3.WithPrefix()))
	}
	resp, err := b.txn(ctx, nil, gets, nil)
	if err != nil {
		return nil, fmt.Errorf("reading who has %s: %w", k, err)
	}
	own := b.listed(resp.Responses[0].GetResponseRange().Kvs)
	var trees []listed
	for _, r := range resp.Responses[1:] {
		trees = append(trees, b.listed(r.GetResponseRange().Kvs)...)
	}
	markHeld(own, trees)
	var entries []lockmgr.Entry
	for _, l := range slices.Concat(own, trees) {
		entries = append(entries, l.Entry)
	}
	return lockmgr.Rivals(entries, k), nil
}

// value is the JSON value of an entry.
type value struct {
	lockmgr.Holder
	Upgrades []lockmgr.AcquisitionID `json:"upgrades,omitempty"` // entries of its path that do not block it
	Keep     bool                    `json:"keep,omitempty"`     // its mount may keep it
}

type listed struct {
	lockmgr.Entry
	upgrades []lockmgr.AcquisitionID
}

func (b *Backend) listed(kvs []*mvccpb.KeyValue) []listed {
	list := make([]listed, 0, len(kvs))
	for _, kv := range kvs {
		g, ok := b.keys.parse(string(kv.Key))
		if !ok {
			b.log.Warn("foreign key among the locks", "key", string(kv.Key))
			continue
		}
		var v value
		if err := json.Unmarshal(kv.Value, &v); err != nil {
			b.log.Warn("entry without a readable holder", "entry", string(kv.Key), "error", err)
		}
		v.AcquisitionID = g.AcquisitionID // the key decides
		list = append(list, listed{
			Entry:    lockmgr.Entry{Key: g.Key, Mode: g.Mode, Holder: v.Holder, Token: kv.CreateRevision},
			upgrades: v.Upgrades,
		})
	}
	return list
}

// markHeld marks the entries that no older conflicting entry keeps waiting.
func markHeld(files, trees []listed) {
	paths := make(map[lockmgr.Key][]listed, len(files))
	for _, f := range files {
		paths[f.Key] = append(paths[f.Key], f)
	}
	for i := range files {
		f := &files[i]
		f.Held = !f.waitsFor(paths[f.Key]) && !f.waitsFor(trees)
	}
	for i := range trees {
		t := &trees[i]
		t.Held = t.Mode == lockmgr.Delegated || !t.waitsFor(files) && !t.waitsFor(trees)
	}
}

// waitsFor ignores delegations: entries put below a delegation are of the same mount.
func (l *listed) waitsFor(others []listed) bool {
	return slices.ContainsFunc(others, func(o listed) bool {
		return o.Token < l.Token && o.Mode != lockmgr.Delegated && o.Grant().Blocks(l.Grant(), l.upgrades)
	})
}
