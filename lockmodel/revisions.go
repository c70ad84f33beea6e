package main

import "slices"

// revisions are those of a state, but for 0, which stands for none.
type revisions []*int8

func (rs *revisions) add(of ...*int8) {
	for _, r := range of {
		if *r != 0 {
			*rs = append(*rs, r)
		}
	}
}

// renumber numbers them anew from 1, in their order, and returns the largest.
func (rs revisions) renumber() int8 {
	slices.SortFunc(rs, func(a, b *int8) int { return int(*a) - int(*b) })
	rank, before := int8(0), int8(0)
	for _, r := range rs {
		if *r != before {
			before = *r
			rank++
		}
		*r = rank
	}
	return rank
}
