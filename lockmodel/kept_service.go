package main

// txn is the service's part of a request: If nothing is in the way Then Put, Else Put in
// line, and recall what may be kept. It returns the answer.
func (w *keptWorld) txn(s *keptState, p, at int, fence int8) int8 {
	m := &s.m[w.programs[p].mount]
	ask := w.programs[p].asks[at]
	keys := ask.keys &^ s.p[p].got
	if !m.lease {
		return answerGone
	}
	if fence != m.fence && w.mut != "nofence" {
		return answerFence
	}
	free, stands := true, false
	for k := range keptKeys {
		if keys&(1<<k) != 0 {
			free = free && !w.rivals(s, w.programs[p].mount, k, ask.kind)
			stands = stands || m.entry[k].rev != 0
		}
	}
	switch {
	case stands:
		if w.mut == "twice" {
			w.twice(s, m, keys)
		}
		return answerPlaced
	case free:
		kind := keptEntries
		switch ask.kind {
		case reads:
			kind = sharedEntry
		case tries:
			kind = plainEntry
		}
		m.put(s, keys, kind)
		return answerPlaced
	}
	recalls := w.recall(s, p, keys, ask.kind)
	switch {
	case ask.kind == tries && recalls:
		return answerRecall
	case ask.kind == tries:
		return answerRefused
	case ask.kind == reads:
		m.put(s, keys, sharedEntry)
	default:
		m.put(s, keys, plainEntry)
	}
	return answerPlaced
}

// put puts entries at one revision, that of the recalls in the same Txn.
func (m *keptMount) put(s *keptState, keys uint8, kind int8) {
	for k := range keptKeys {
		if keys&(1<<k) != 0 {
			m.entry[k] = keptEntry{rev: s.rev + 1, kind: kind}
		}
	}
}

// twice is what an unconditional Put of the Else branch does to an entry that the Then
// branch of the same, unanswered Txn has put: its key is another one.
func (w *keptWorld) twice(s *keptState, m *keptMount, keys uint8) {
	for k := range keptKeys {
		if e := &m.entry[k]; keys&(1<<k) != 0 && e.kind == keptEntries && e.twin == 0 {
			e.twin = s.rev + 1
		}
	}
}

// rivals reports whether an entry of another mount conflicts with a request for k.
func (w *keptWorld) rivals(s *keptState, m, k int, kind int8) bool {
	for o := range s.m {
		if e := s.m[o].entry[k]; o != m && e.rev != 0 && (kind != reads || e.kind != sharedEntry) {
			return true
		}
	}
	return false
}

// recall puts a recall for each key of which an entry stands that may be kept.
func (w *keptWorld) recall(s *keptState, p int, keys uint8, kind int8) (put bool) {
	m := w.programs[p].mount
	if kind != tries && w.mut == "norecall" || kind == tries && w.mut == "notry" {
		return false
	}
	for k := range keptKeys {
		for o := range s.m {
			if l := &s.m[o]; o != m && keys&(1<<k) != 0 && l.entry[k].rev != 0 && l.entry[k].kind == keptEntries {
				s.p[p].recall[k] = s.rev + 1
				l.slot[k].events = s.rev + 1
				put = true
			}
		}
	}
	return put
}

// ahead reports whether a conflicting entry is ahead of p's.
func (w *keptWorld) ahead(s *keptState, p int) bool {
	ask := w.ask(s, p)
	for k := range keptKeys {
		own := s.m[w.programs[p].mount].entry[k]
		if (ask.keys&^s.p[p].got)&(1<<k) == 0 {
			continue
		}
		if own.twin != 0 {
			return true
		}
		for o := range s.m {
			e := s.m[o].entry[k]
			if o != w.programs[p].mount && e.rev != 0 && e.rev < own.rev && !(e.kind == sharedEntry && own.kind == sharedEntry) {
				return true
			}
		}
	}
	return false
}

// recalled has the steps of a try that has recalled an entry: it waits until the entry is
// gone, or its mount says that it is in use.
func (w *keptWorld) recalled(s *keptState, p int, do keptDo) {
	inUse, stands := false, false
	for k, r := range s.p[p].recall {
		for m := range s.m {
			if e := s.m[m].entry[k]; r != 0 && m != w.programs[p].mount && e.rev != 0 && e.rev < r {
				stands = true
				inUse = inUse || e.told >= r || e.says && w.mut == "anytold"
			}
		}
	}
	if !stands {
		do("sees that the entry is gone", false, func(n *keptState) {
			n.p[p].recall = [keptKeys]int8{}
			n.p[p].send(n, w.programs[p].mount)
		})
	}
	if inUse {
		do("sees that the file is in use", false, func(n *keptState) { w.refused(n, p) })
	}
}
