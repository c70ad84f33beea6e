package etcdlock_test

import (
	"context"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// txnKV has commit carry out every Txn.
type txnKV struct {
	clientv3.KV
	commit func(*txn) (*clientv3.TxnResponse, error)
}

// onTxn has commit carry out the client's Txns. No session of it is open yet: it
// would read the KV that this replaces.
func onTxn(client *clientv3.Client, commit func(*txn) (*clientv3.TxnResponse, error)) {
	client.KV = &txnKV{KV: client.KV, commit: commit}
}

func (kv *txnKV) Txn(ctx context.Context) clientv3.Txn { return &txn{kv: kv, ctx: ctx} }

// txn is a Txn that is not sent yet.
type txn struct {
	kv       *txnKV
	ctx      context.Context
	cmps     []clientv3.Cmp
	then, or []clientv3.Op
}

func (t *txn) If(cs ...clientv3.Cmp) clientv3.Txn   { t.cmps = append(t.cmps, cs...); return t }
func (t *txn) Then(ops ...clientv3.Op) clientv3.Txn { t.then = append(t.then, ops...); return t }
func (t *txn) Else(ops ...clientv3.Op) clientv3.Txn { t.or = append(t.or, ops...); return t }

func (t *txn) Commit() (*clientv3.TxnResponse, error) { return t.kv.commit(t) }

func (t *txn) send() (*clientv3.TxnResponse, error) {
	return t.kv.KV.Txn(t.ctx).If(t.cmps...).Then(t.then...).Else(t.or...).Commit()
}

// changes reports whether t depends on what stands, as all do that acquire or
// release, or is a group of such.
func changes(t *txn) bool {
	return len(t.cmps) > 0 || slices.ContainsFunc(t.then, clientv3.Op.IsTxn)
}
