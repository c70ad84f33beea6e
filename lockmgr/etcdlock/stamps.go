package etcdlock

import (
	"strconv"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// Each directory entry is put together with a stamp of its path. When the entry is gone, the stamp
// still tells when it was put: see Undisturbed. Paths share 65,536 stamps by their hash, so that
// the stamps do not fill etcd. No Txn compares a stamp, so no directory keeps another one waiting
// that has the same stamp.

// stamps are the mod revisions of the stamps that this mount has seen. The zero value has seen none.
type stamps struct {
	mu    sync.Mutex
	rev   map[string]int64 // GUARDED_BY(mu); by key
	begun int64            // GUARDED_BY(mu); stamps that were put up to this revision may be missing in rev
}

// stampOf is the key of a path's stamp.
func (l layout) stampOf(path string) string { return l.stampAt(lockmgr.PathHash(path)) }

func (l layout) stampAt(hash uint16) string { return l.stamps() + strconv.FormatUint(uint64(hash), 16) }

// stamp has the Puts of the directories' stamps.
func (l layout) stamp(keys []lockmgr.Key) (puts []clientv3.Op) {
	seen := make(map[string]bool)
	for _, k := range keys {
		if key := l.stampOf(k.Path); k.Kind == lockmgr.Tree && !seen[key] {
			seen[key] = true
			puts = append(puts, clientv3.OpPut(key, ""))
		}
	}
	return puts
}

// stampsOf has the Gets of the stamps of all directories at and above the keys.
func (l layout) stampsOf(keys []lockmgr.Key) (gets []clientv3.Op) {
	seen := make(map[string]bool)
	for _, k := range keys {
		for _, key := range l.stampsAbove(k) {
			if !seen[key] {
				seen[key] = true
				gets = append(gets, clientv3.OpGet(key, clientv3.WithKeysOnly()))
			}
		}
	}
	return gets
}

// stampsAbove are the keys of the stamps of k's path, and of those above.
func (l layout) stampsAbove(k lockmgr.Key) (keys []string) {
	if k.Kind == lockmgr.Inode {
		return nil
	}
	lockmgr.PathHashes(k.Path, func(h uint16) bool {
		keys = append(keys, l.stampAt(h))
		return true
	})
	return keys
}

// note takes in the answers to Gets of stamps.
func (s *stamps) note(answers []*pb.ResponseOp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range answers {
		for _, kv := range a.GetResponseRange().GetKvs() {
			s.saw(string(kv.Key), kv.ModRevision)
		}
	}
}

// put notes stamps that were put at rev, or perhaps were.
func (s *stamps) put(rev int64, keys ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		s.saw(key, rev)
	}
}

// begin notes that another process of the mount may have put or seen stamps up to rev that this one
// does not know.
func (s *stamps) begin(rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = max(s.begun, rev)
}

// saw notes a stamp. s.mu is held.
func (s *stamps) saw(key string, rev int64) {
	if s.rev == nil {
		s.rev = make(map[string]int64)
	}
	s.rev[key] = max(s.rev[key], rev)
}

// Undisturbed implements lockmgr.Session. The answer that granted k has read the stamps.
func (s *Session) Undisturbed(k lockmgr.Key, from, to int64) bool {
	if k.Kind == lockmgr.Inode || from > to {
		return false
	}
	s.stamps.mu.Lock()
	defer s.stamps.mu.Unlock()
	if from < lockmgr.FencingToken(s.stamps.begun+1, 0) {
		return false
	}
	for _, key := range s.b.keys.stampsAbove(k) {
		if lockmgr.FencingToken(s.stamps.rev[key], 0) >= from {
			return false
		}
	}
	return true
}
