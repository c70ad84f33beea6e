package etcdlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// recall asks the mounts that may keep the entries ahead to give them back. It names each entry
// once, in one record for each mount. The records end with the request or the session.
func (a *acquisition) recall(ctx context.Context) error {
	news := make(map[string][]lockmgr.AcquisitionID) // by mount
	for _, b := range a.known.ahead {
		if g, ok := a.s.b.keys.parse(b.entry); ok && b.keep() && !a.hasRecalled(&b) {
			news[mountOf(b.lease)] = append(news[mountOf(b.lease)], g.AcquisitionID)
		}
	}
	if len(news) == 0 {
		return nil
	}
	if a.recalled == nil {
		a.recalled, a.recallID = make(map[string][]lockmgr.AcquisitionID), uuid.NewString()
	}
	var puts []clientv3.Op
	for mount, ids := range news {
		named := slices.Concat(a.recalled[mount], ids)
		value, err := json.Marshal(lockmgr.Recall{Entries: named, Try: a.req.Wait == lockmgr.NoWait})
		if err != nil {
			return fmt.Errorf("etcdlock: recall: %w", err)
		}
		puts = append(puts, clientv3.OpPut(a.s.b.keys.recall(mount, a.recallID), string(value), clientv3.WithLease(a.s.lease)))
		news[mount] = named
		if _, known := a.recalled[mount]; !known {
			a.recalled[mount] = nil // a record may exist from now on
		}
	}
	fence := a.s.fence.at()
	resp, err := a.s.b.txn(ctx, []clientv3.Cmp{a.s.fence.unchanged(fence)}, puts, nil)
	switch {
	case err != nil && unanswered(err):
		a.lateFor = fence
	case err == nil && !resp.Succeeded:
		err = fmt.Errorf("%w: the fence was raised", lockmgr.ErrUnavailable)
	}
	if err != nil {
		return a.s.life.Noted(err)
	}
	maps.Copy(a.recalled, news)
	return nil
}

// hasRecalled: below a directory, each answer shows other entries.
func (a *acquisition) hasRecalled(b *blocker) bool {
	g, ok := a.s.b.keys.parse(b.entry)
	return ok && slices.Contains(a.recalled[mountOf(b.lease)], g.AcquisitionID)
}

func (a *acquisition) records() (keys []string) {
	for mount := range a.recalled {
		keys = append(keys, a.s.b.keys.recall(mount, a.recallID))
	}
	return keys
}

func (b *blocker) keep() bool {
	var v value
	return json.Unmarshal(b.value, &v) == nil && v.Keep
}

// tryRecall is for NoWait: it recalls what is ahead if all of it is kept, and waits until all is
// given back or one mount says that it is in use. An error means that no mount has answered.
func (a *acquisition) tryRecall(ctx context.Context) (given bool, err error) {
	if len(a.known.ahead) == 0 || slices.ContainsFunc(a.known.ahead, func(b blocker) bool { return !b.keep() || a.hasRecalled(&b) }) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.s.b.timeout)
	defer cancel()
	w, err := a.s.b.watchDeletes(ctx, append(a.watched(), a.s.b.keys.recalls())...)
	if err != nil {
		return false, err
	}
	defer w.stop()
	if w.rev > a.known.rev {
		if err := a.refresh(ctx); err != nil {
			return false, err
		}
	}
	if err := a.recall(ctx); err != nil {
		return false, err
	}
	for len(a.known.ahead) > 0 {
		keys, err := w.next(ctx, a.s.b.timeout)
		if err != nil || slices.ContainsFunc(a.records(), func(r string) bool { return slices.Contains(keys, r) }) {
			if errors.Is(err, lockmgr.ErrUnavailable) && ctx.Err() != nil {
				err = nil // no answer from the holder: it still has the lock
			}
			return false, err
		}
		a.known.gone(keys)
	}
	return true, nil
}

// endRecall deletes the records in the background, and voids a Put of one that may still arrive.
func (a *acquisition) endRecall() {
	if a.recalled == nil {
		return
	}
	a.s.life.Go(func() {
		ctx, cancel := context.WithTimeout(a.s.life.Over, a.s.b.timeout)
		defer cancel()
		var dels []clientv3.Op
		for _, r := range a.records() {
			dels = append(dels, clientv3.OpDelete(r))
		}
		_, err := a.s.group.txn(ctx, &request{release: true, voids: a.lateFor, then: dels})
		if err != nil {
			a.s.b.log.Debug("a recall stands until the session ends", "recall", a.recallID, "error", err)
		}
	})
}

// WatchRecalls implements lockmgr.Recaller.
func (b *Backend) WatchRecalls(ctx context.Context, found func(lockmgr.Recall)) {
	defer b.told.listen(&listener{prefix: b.keys.recall(mountOf(b.leases), ""), found: func(kv *mvccpb.KeyValue) {
		if recall, ok := b.parseRecall(kv); ok {
			found(recall)
		}
	}})()
	<-ctx.Done()
}

// Recalls implements lockmgr.Recaller with one read.
func (b *Backend) Recalls(ctx context.Context) ([]lockmgr.Recall, error) {
	resp, err := b.txn(ctx, nil, []clientv3.Op{clientv3.OpGet(b.keys.recall(mountOf(b.leases), ""), clientv3.WithPrefix())}, nil)
	if err != nil {
		return nil, fmt.Errorf("reading recalls: %w", err)
	}
	var recalls []lockmgr.Recall
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		if r, ok := b.parseRecall(kv); ok {
			recalls = append(recalls, r)
		}
	}
	return recalls, nil
}

func (b *Backend) parseRecall(kv *mvccpb.KeyValue) (r lockmgr.Recall, ok bool) {
	err := json.Unmarshal(kv.Value, &r)
	if err == nil {
		r.ID, err = uuid.Parse(strings.TrimPrefix(string(kv.Key), b.keys.recall(mountOf(b.leases), "")))
	}
	if err != nil {
		b.log.Warn("recall that cannot be read", "key", string(kv.Key), "error", err)
	}
	return r, err == nil
}

// InUse implements lockmgr.Recaller: it deletes the record.
func (b *Backend) InUse(ctx context.Context, id uuid.UUID) error {
	_, err := b.txn(ctx, nil, []clientv3.Op{clientv3.OpDelete(b.keys.recall(mountOf(b.leases), id.String()))}, nil)
	return err
}

// DescribesAfter implements lockmgr.Recaller.
func (b *Backend) DescribesAfter() time.Duration { return time.Second }

// maxDescribed limits the entries that one Txn describes.
const maxDescribed = 100

// Describe implements lockmgr.Recaller. It reads the entries first, and changes those that stand and
// are as they were then. ErrUnavailable is also for an entry that a late request has changed since.
func (b *Backend) Describe(ctx context.Context, entries []lockmgr.Entry) error {
	for part := range slices.Chunk(entries, maxDescribed) {
		if err := b.describe(ctx, part); err != nil {
			return fmt.Errorf("describing locks: %w", err)
		}
	}
	return nil
}

func (b *Backend) describe(ctx context.Context, entries []lockmgr.Entry) error {
	gets := make([]clientv3.Op, len(entries))
	for i, e := range entries {
		gets[i] = clientv3.OpGet(b.keys.granted(e.Grant()))
	}
	resp, err := b.txn(ctx, nil, gets, nil)
	if err != nil {
		return err
	}
	var ops []clientv3.Op
	var read []*mvccpb.KeyValue // what ops compare
	for i, e := range entries {
		kvs := resp.Responses[i].GetResponseRange().GetKvs()
		if len(kvs) == 0 || kvs[0].CreateRevision != e.Token {
			continue
		}
		var v value
		if err := json.Unmarshal(kvs[0].Value, &v); err != nil {
			return fmt.Errorf("etcdlock: entry %s: %w", kvs[0].Key, err)
		}
		v.Holder = e.Holder
		record, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("etcdlock: holder: %w", err)
		}
		key := string(kvs[0].Key)
		unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", kvs[0].ModRevision)
		ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{unchanged},
			[]clientv3.Op{clientv3.OpPut(key, string(record), clientv3.WithIgnoreLease())},
			[]clientv3.Op{clientv3.OpGet(key, clientv3.WithKeysOnly())}))
		read = append(read, kvs[0])
	}
	if len(ops) == 0 {
		return nil
	}
	if resp, err = b.txn(ctx, nil, ops, nil); err != nil {
		return err
	}
	for i, kv := range read {
		answer := resp.Responses[i].GetResponseTxn()
		if answer.Succeeded {
			continue
		}
		if stands := answer.Responses[0].GetResponseRange().GetKvs(); len(stands) == 1 && stands[0].CreateRevision == kv.CreateRevision {
			return fmt.Errorf("%w: %s has changed meanwhile", lockmgr.ErrUnavailable, kv.Key)
		}
	}
	return nil
}
