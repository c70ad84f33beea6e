package lockmgr

import (
	"cmp"
	"slices"
)

// Listing filters and sorts entries as Backend.Entries does.
func Listing(entries []Entry, prefix string) []Entry {
	var names, inodes []Entry
	root := Key{Kind: Tree, Path: prefix}
	acquired := make(map[AcquisitionID]bool)
	for _, e := range entries {
		switch {
		case e.Key.Kind == Inode:
			inodes = append(inodes, e)
		case prefix == "" || root.Conflicts(e.Key):
			names = append(names, e)
			acquired[e.Holder.AcquisitionID] = true
		}
	}
	if prefix != "" {
		inodes = slices.DeleteFunc(inodes, func(e Entry) bool { return !acquired[e.Holder.AcquisitionID] })
	}
	sorted(names)
	sorted(inodes)
	return append(names, inodes...)
}

// Rivals filters and sorts entries as Backend.Rivals does.
func Rivals(entries []Entry, k Key) []Entry {
	entries = slices.DeleteFunc(entries, func(e Entry) bool { return !e.Key.Conflicts(k) })
	sorted(entries)
	return entries
}

func sorted(entries []Entry) {
	slices.SortFunc(entries, func(x, y Entry) int {
		return cmp.Or(cmp.Compare(x.Key.Path, y.Key.Path), cmp.Compare(x.Token, y.Token), cmp.Compare(x.Key.Kind, y.Key.Kind))
	})
}
