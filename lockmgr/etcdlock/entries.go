package etcdlock

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// Entries is lockmgr.Backend's: one linearizable read. Errors: ErrInvalidKey,
// ErrUnavailable, wrapping ctx's if that ended the call.
func (b *Backend) Entries(ctx context.Context, prefix string) ([]lockmgr.Entry, error) {
	if prefix != "" {
		if _, err := lockmgr.FileKey(prefix); err != nil {
			return nil, err
		}
	}
	resp, err := b.txn(ctx, nil, []clientv3.Op{
		clientv3.OpGet(b.keys.filesFrom(prefix), clientv3.WithPrefix()),
		clientv3.OpGet(b.keys.trees(), clientv3.WithPrefix()), // those above matter too
		clientv3.OpGet(b.keys.inodes(), clientv3.WithPrefix()),
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("listing locks: %w", err)
	}
	files := b.entries(resp.Responses[0].GetResponseRange().Kvs)
	trees := b.entries(resp.Responses[1].GetResponseRange().Kvs)
	inodes := b.entries(resp.Responses[2].GetResponseRange().Kvs)
	markHeld(files, trees)
	markHeld(inodes, nil)
	names := files
	root := lockmgr.Key{Kind: lockmgr.Tree, Path: prefix}
	for _, t := range trees {
		if prefix == "" || len(t.Key.Path) >= len(prefix) && root.Conflicts(t.Key) {
			names = append(names, t)
		}
	}
	slices.SortFunc(names, inOrder)
	slices.SortFunc(inodes, inOrder)
	if prefix != "" {
		inodes = slices.DeleteFunc(inodes, func(i lockmgr.Entry) bool {
			return !slices.ContainsFunc(names, func(n lockmgr.Entry) bool { return n.Holder.Owner == i.Holder.Owner })
		})
	}
	return append(names, inodes...), nil
}

func inOrder(x, y lockmgr.Entry) int {
	return cmp.Or(cmp.Compare(x.Key.Path, y.Key.Path), cmp.Compare(x.Token, y.Token), cmp.Compare(x.Key.Kind, y.Key.Kind))
}

func (b *Backend) entries(kvs []*mvccpb.KeyValue) []lockmgr.Entry {
	entries := make([]lockmgr.Entry, 0, len(kvs))
	for _, kv := range kvs {
		key, owner, ok := b.keys.parse(string(kv.Key))
		if !ok {
			b.log.Warn("foreign key among the locks", "key", string(kv.Key))
			continue
		}
		e := lockmgr.Entry{Key: key, Token: kv.CreateRevision}
		if err := json.Unmarshal(kv.Value, &e.Holder); err != nil {
			b.log.Warn("entry without a readable holder", "entry", string(kv.Key), "err", err)
		}
		e.Holder.Owner = owner // the key is what counts
		entries = append(entries, e)
	}
	return entries
}

// markHeld marks the entries that no conflicting older one keeps waiting.
func markHeld(files, trees []lockmgr.Entry) {
	oldest := make(map[string]int64, len(files)) // of a path
	for _, f := range files {
		if rev, ok := oldest[f.Key.Path]; !ok || f.Token < rev {
			oldest[f.Key.Path] = f.Token
		}
	}
	for i := range files {
		f := &files[i]
		f.Held = f.Token == oldest[f.Key.Path] && !waitsFor(f, trees)
	}
	for i := range trees {
		t := &trees[i]
		t.Held = !waitsFor(t, files) && !waitsFor(t, trees)
	}
}

func waitsFor(e *lockmgr.Entry, others []lockmgr.Entry) bool {
	return slices.ContainsFunc(others, func(o lockmgr.Entry) bool {
		return o.Token < e.Token && o.Key.Conflicts(e.Key)
	})
}
