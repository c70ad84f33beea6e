package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

var (
	_ lockmgr.AdvisoryBackend = (*Backend)(nil)
	_ lockmgr.AdvisorySession = (*Session)(nil)
)

// advisory is the prefix of the rows of a table, or of all tables for the zero Key.
func (l layout) advisory(table lockmgr.Key) string {
	if table == (lockmgr.Key{}) {
		return l.admin + "advisory/"
	}
	return l.admin + "advisory/" + table.Path + "//"
}

// parseAdvisory takes the key of a row apart.
func (l layout) parseAdvisory(key string) (table lockmgr.Key, name string, ok bool) {
	below, ok := strings.CutPrefix(key, l.advisory(lockmgr.Key{}))
	if !ok {
		return table, "", false
	}
	path, name, ok := strings.Cut(below, "//")
	if !ok {
		return table, "", false
	}
	table, err := inodeKey(path)
	return table, name, err == nil
}

func (b *Backend) advisoryRows(rev int64, kvs []*mvccpb.KeyValue) lockmgr.AdvisoryRows {
	rows := lockmgr.AdvisoryRows{Revision: rev}
	for _, kv := range kvs {
		table, name, ok := b.keys.parseAdvisory(string(kv.Key))
		if !ok {
			b.log.Warn("row of advisory locks that cannot be read", "key", string(kv.Key))
			continue
		}
		rows.Rows = append(rows.Rows, lockmgr.AdvisoryRow{Table: table, Name: name, Value: kv.Value, Created: kv.CreateRevision, Changed: kv.ModRevision})
	}
	return rows
}

// maxTables bounds the tables of a read that names them. A Txn of etcd has at most 128 operations.
const maxTables = 100

// AdvisoryRows is lockmgr.AdvisoryBackend's: one read.
func (b *Backend) AdvisoryRows(ctx context.Context, tables ...lockmgr.Key) (lockmgr.AdvisoryRows, error) {
	if len(tables) == 0 || len(tables) > maxTables {
		tables = []lockmgr.Key{{}}
	}
	gets := make([]clientv3.Op, len(tables))
	for i, t := range tables {
		gets[i] = clientv3.OpGet(b.keys.advisory(t), clientv3.WithPrefix())
	}
	resp, err := b.txn(ctx, nil, gets, nil)
	if err != nil {
		return lockmgr.AdvisoryRows{}, fmt.Errorf("reading advisory locks: %w", err)
	}
	var kvs []*mvccpb.KeyValue
	for _, r := range resp.Responses {
		kvs = append(kvs, r.GetResponseRange().Kvs...)
	}
	return b.advisoryRows(resp.Header.Revision, kvs), nil
}

// WatchAdvisory is lockmgr.AdvisoryBackend's: one watch.
func (b *Backend) WatchAdvisory(ctx context.Context, changed func(lockmgr.Key, int64)) {
	var r retry.Retrier
	r.Always(ctx, func() error {
		err := b.followAdvisory(ctx, &r, changed)
		if errors.Is(err, retry.ErrRefused) && ctx.Err() == nil && r.Notable() {
			b.log.Warn("advisory locks cannot be watched: a mount with requests that wait reads the locks every few seconds", "error", err)
		}
		return err
	})
}

func (b *Backend) followAdvisory(ctx context.Context, r *retry.Retrier, changed func(lockmgr.Key, int64)) error {
	watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	feed, _, err := b.watch(watching, cancel, b.keys.advisory(lockmgr.Key{}))
	if err != nil {
		return b.fault(ctx, err)
	}
	r.Answered()
	changed(lockmgr.Key{}, 0)
	for {
		resp, ok := receive(watching, feed)
		if err := resp.Err(); err != nil {
			return b.fault(ctx, err)
		}
		if !ok {
			return fmt.Errorf("%w: watch closed", lockmgr.ErrUnavailable)
		}
		tables := make(map[lockmgr.Key]int64)
		for _, ev := range resp.Events {
			if table, _, ok := b.keys.parseAdvisory(string(ev.Kv.Key)); ok {
				tables[table] = ev.Kv.ModRevision // that of a delete, too
			}
		}
		for table, rev := range tables {
			changed(table, rev)
		}
	}
}

// advisoryError is err, or that the session has ended: then the request was not waited for.
func (s *Session) advisoryError(err error) error {
	if s.life.Ended() {
		return lockmgr.ErrSessionLost
	}
	return s.life.Noted(err)
}

// PutAdvisory is lockmgr.AdvisorySession's: one Txn. It compares the fence, so that Void, which
// raises it, makes void what comes late.
func (s *Session) PutAdvisory(ctx context.Context, p lockmgr.AdvisoryPut) (rows lockmgr.AdvisoryRows, done bool, err error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return rows, false, err
	}
	defer leave()
	prefix := s.b.keys.advisory(p.Table)
	get := clientv3.OpGet(prefix, clientv3.WithPrefix())
	if p.Void {
		resp, err := s.b.txn(ctx, nil, []clientv3.Op{s.fence.raise(), get}, nil)
		if err == nil {
			err = s.fence.raised(resp.Header.Revision, resp.Responses[0])
		}
		if err != nil {
			return rows, false, s.advisoryError(err)
		}
		return s.b.advisoryRows(resp.Header.Revision, resp.Responses[1].GetResponseRange().Kvs), false, nil
	}
	fence := s.fence.at()
	cmps := []clientv3.Cmp{s.fence.unchanged(fence)}
	if p.Since != lockmgr.AnyRevision {
		cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(prefix).WithPrefix(), "<", p.Since+1))
	}
	for name, rev := range p.Stand {
		cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(prefix+name), "=", rev))
	}
	var then []clientv3.Op
	for name, value := range p.Put {
		then = append(then, clientv3.OpPut(prefix+name, string(value), clientv3.WithLease(s.lease)))
	}
	for _, name := range p.Delete {
		then = append(then, clientv3.OpDelete(prefix+name))
	}
	resp, err := s.b.txn(ctx, cmps, append(then, get), []clientv3.Op{get, clientv3.OpGet(s.record, clientv3.WithKeysOnly())})
	if err != nil {
		return rows, false, s.advisoryError(err)
	}
	if resp.Succeeded {
		return s.b.advisoryRows(resp.Header.Revision, resp.Responses[len(then)].GetResponseRange().Kvs), true, nil
	}
	record := resp.Responses[1].GetResponseRange().Kvs
	if len(record) == 0 {
		return rows, false, s.life.Noted(lockmgr.ErrSessionLost)
	}
	if err := s.fence.seen(record[0].ModRevision, fence); err != nil {
		return rows, false, s.advisoryError(err)
	}
	return s.b.advisoryRows(resp.Header.Revision, resp.Responses[0].GetResponseRange().Kvs), false, nil
}
