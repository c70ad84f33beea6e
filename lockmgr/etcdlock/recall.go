package etcdlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

var _ lockmgr.Recaller = (*Backend)(nil)

// recall asks the mounts of the entries ahead that may be kept to give them back. An entry is
// named once, in a record that ends with the request, or with the session.
func (a *acquisition) recall(ctx context.Context) error {
	named := len(a.recalled)
	for _, b := range a.known.ahead {
		if g, ok := a.s.b.keys.parse(b.entry); ok && b.keep() && !slices.Contains(a.recalled, g.AcquisitionID) {
			a.recalled = append(a.recalled, g.AcquisitionID)
		}
	}
	if len(a.recalled) == named {
		return nil
	}
	value, err := json.Marshal(lockmgr.Recall{Entries: a.recalled, Try: a.req.Wait == lockmgr.NoWait})
	if err != nil {
		return fmt.Errorf("etcdlock: recall: %w", err)
	}
	if a.record == "" {
		a.record = a.s.b.keys.recall(uuid.NewString())
	}
	_, err = a.s.b.txn(ctx, nil, []clientv3.Op{clientv3.OpPut(a.record, string(value), clientv3.WithLease(a.s.lease))}, nil)
	if err != nil {
		a.recalled = a.recalled[:named]
		return a.s.life.Noted(err)
	}
	return nil
}

// hasRecalled reports whether the entry was named. Below a directory one answer has a part of
// the entries, and the next has others.
func (a *acquisition) hasRecalled(b *blocker) bool {
	g, ok := a.s.b.keys.parse(b.entry)
	return ok && slices.Contains(a.recalled, g.AcquisitionID)
}

// keep reports whether the entry's mount may keep it.
func (b *blocker) keep() bool {
	var v value
	return json.Unmarshal(b.value, &v) == nil && v.Keep
}

// tryRecall is for a request that does not wait. It recalls what is ahead, if that is kept, and
// waits until it is given back, or one mount says that it is in use. An error means that no
// mount has answered.
func (a *acquisition) tryRecall(ctx context.Context) (given bool, err error) {
	if len(a.known.ahead) == 0 || slices.ContainsFunc(a.known.ahead, func(b blocker) bool { return !b.keep() || a.hasRecalled(&b) }) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.s.b.timeout)
	defer cancel()
	w, err := a.s.b.watchDeletes(ctx, append(a.watched(), a.s.b.keys.recall(""))...)
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
		if err != nil || slices.Contains(keys, a.record) {
			if errors.Is(err, lockmgr.ErrUnavailable) && ctx.Err() != nil {
				err = nil // the holder does not answer: it has the lock
			}
			return false, err
		}
		a.known.gone(keys)
	}
	return true, nil
}

// endRecall deletes the record, in the background.
func (a *acquisition) endRecall() {
	if a.record == "" {
		return
	}
	a.s.life.Go(func() {
		ctx, cancel := context.WithTimeout(a.s.life.Over, a.s.b.timeout)
		defer cancel()
		if _, err := a.s.b.txn(ctx, nil, []clientv3.Op{clientv3.OpDelete(a.record)}, nil); err != nil {
			a.s.b.log.Debug("a recall stands until the session ends", "recall", a.record, "error", err)
		}
	})
}

// WatchRecalls is lockmgr.Recaller's: one watch. Recalls that were put while it was down are
// read when it stands again.
func (b *Backend) WatchRecalls(ctx context.Context, found func(lockmgr.Recall)) {
	var r retry.Retrier
	r.Always(ctx, func() error {
		err := b.followRecords(ctx, &r, b.keys.recall(""), func(kv *mvccpb.KeyValue) {
			if recall, ok := b.parseRecall(kv); ok {
				found(recall)
			}
		})
		if errors.Is(err, retry.ErrRefused) && ctx.Err() == nil && r.Notable() {
			b.log.Warn("recalls cannot be watched: other mounts may wait until a kept lock was idle for --keep", "error", err)
		}
		return err
	})
}

// Recalls is lockmgr.Recaller's: one read.
func (b *Backend) Recalls(ctx context.Context) ([]lockmgr.Recall, error) {
	resp, err := b.txn(ctx, nil, []clientv3.Op{clientv3.OpGet(b.keys.recall(""), clientv3.WithPrefix())}, nil)
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
		r.ID, err = uuid.Parse(strings.TrimPrefix(string(kv.Key), b.keys.recall("")))
	}
	if err != nil {
		b.log.Warn("recall that cannot be read", "key", string(kv.Key), "error", err)
	}
	return r, err == nil
}

// InUse is lockmgr.Recaller's: it deletes the record.
func (b *Backend) InUse(ctx context.Context, id uuid.UUID) error {
	_, err := b.txn(ctx, nil, []clientv3.Op{clientv3.OpDelete(b.keys.recall(id.String()))}, nil)
	return err
}

// maxDescribed is how many entries one Txn describes.
const maxDescribed = 100

// Describe is lockmgr.Recaller's. It is carried out for the entries that stand with their
// tokens then, however late it is.
func (b *Backend) Describe(ctx context.Context, entries []lockmgr.Entry) error {
	for part := range slices.Chunk(entries, maxDescribed) {
		ops := make([]clientv3.Op, len(part))
		for i, e := range part {
			record, err := json.Marshal(value{Holder: e.Holder, Keep: true})
			if err != nil {
				return fmt.Errorf("etcdlock: holder: %w", err)
			}
			key := b.keys.granted(e.Grant())
			stands := clientv3.Compare(clientv3.CreateRevision(key), "=", e.Token)
			ops[i] = clientv3.OpTxn([]clientv3.Cmp{stands}, []clientv3.Op{clientv3.OpPut(key, string(record), clientv3.WithIgnoreLease())}, nil)
		}
		if _, err := b.txn(ctx, nil, ops, nil); err != nil {
			return fmt.Errorf("describing locks: %w", err)
		}
	}
	return nil
}
