package procid

import (
	"os"
	"strconv"
)

// Descendants returns the descendants of pid, zombies included. Starting ones may be missing.
func (p Proc) Descendants(pid int) ([]int, error) {
	dir, err := os.Open(p.root())
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var array [bufSize]byte
	children := make(map[int][]int)
	for _, name := range names {
		child, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		b, err := p.readStat(array[:], child)
		if err != nil {
			continue // it has ended
		}
		if st, err := parseStat(b); err == nil {
			children[st.ppid] = append(children[st.ppid], child)
		}
	}
	found := children[pid]
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i]]...)
	}
	return found, nil
}
