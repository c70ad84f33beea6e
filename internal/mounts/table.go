package mounts

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Mount is one line of /proc/self/mountinfo.
type Mount struct {
	ID     int    // unique among the mounts there are
	Parent int    // the ID of the mount that it is mounted on
	Device string // major:minor of the file system, its own while a mount of it stands
	Point  string // where it is mounted, an absolute path
	Root   string // the directory of the file system that is shown
	FSType string // with the subtype, as in "fuse.lockfs"
	Source string // the device, the server, or a name the file system chose
	Shared bool   // mounts in it show in other mount namespaces
	Flags  string // the options of this mount
	Super  string // the options of the file system itself

	// Unlinked: the kernel has dropped the name Root of the shown directory. It was removed, another
	// machine has renamed it, or a look-up of the name has failed.
	Unlinked bool
}

// ReadOnly reports whether nothing can be written through the mount.
func (m Mount) ReadOnly() bool { return m.Attrs()&ReadOnly != 0 }

// Attrs returns the attributes of the mount.
func (m Mount) Attrs() (attrs Attrs) {
	for flag := range strings.SplitSeq(m.Flags, ",") {
		attrs |= attrWords[flag]
	}
	return attrs
}

// List returns the mounts of this process's mount namespace.
func List() ([]Mount, error) { return list("/proc/self/mountinfo") }

// ListOf returns the mounts that another process sees, with the paths that it sees.
func ListOf(pid int) ([]Mount, error) { return list(fmt.Sprintf("/proc/%d/mountinfo", pid)) }

// ListIn returns the mounts of a mount namespace, with the paths that lead to them there.
func ListIn(namespace *os.File) (table []Mount, err error) {
	err = inNamespace(namespace, func() error {
		table, err = list("mountinfo") // of this thread
		return err
	})
	return table, err
}

func list(file string) ([]Mount, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	defer f.Close()
	return parse(f)
}

// parse reads a table in the format of /proc/PID/mountinfo, proc(5).
func parse(r io.Reader) ([]Mount, error) {
	var table []Mount
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20) // an overlay lists its layers in one line
	for lines.Scan() {
		m, err := parseLine(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("mount table: line %q: %w", lines.Text(), err)
		}
		table = append(table, m)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return table, nil
}

var errFields = errors.New("too few fields")

// parseLine reads one line:
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
//	ID      dev root point options   optional... - type source  super options
func parseLine(line string) (Mount, error) {
	// Blanks within a field are escaped, so the first lone dash is the separator.
	before, after, ok := strings.Cut(line, " - ")
	left, right := strings.Split(before, " "), strings.Split(after, " ")
	if !ok || len(left) < 6 || len(right) < 2 {
		return Mount{}, errFields
	}
	id, err := strconv.Atoi(left[0])
	if err != nil {
		return Mount{}, err
	}
	parent, err := strconv.Atoi(left[1])
	if err != nil {
		return Mount{}, err
	}
	root, unlinked := strings.CutSuffix(left[3], "//deleted") // which is in no name
	return Mount{
		ID:       id,
		Parent:   parent,
		Device:   left[2],
		Root:     unescape(root),
		Point:    unescape(left[4]),
		FSType:   unescape(right[0]),
		Source:   unescape(right[1]),
		Flags:    left[5],
		Shared:   slices.ContainsFunc(left[6:], func(s string) bool { return strings.HasPrefix(s, "shared:") }),
		Super:    unescape(strings.Join(right[2:], " ")),
		Unlinked: unlinked,
	}, nil
}

// unescape undoes the kernel's octal escapes: \040 for a blank and the like.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
