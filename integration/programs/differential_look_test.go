package programs

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab/agent"
)

// digest tells bytes in runs: '3a 4096\x00 1b'.
func digest(b []byte) string {
	var s strings.Builder
	for i := 0; i < len(b); {
		j := i
		for j < len(b) && b[j] == b[i] {
			j++
		}
		fmt.Fprintf(&s, "%d%s ", j-i, strings.Trim(strconv.QuoteToASCII(string(b[i:i+1])), `"`))
		if i = j; s.Len() > 4000 {
			s.WriteString("…")
			break
		}
	}
	return s.String()
}

// describe is what two file systems agree about of a file's attributes.
func describe(st *unix.Statx_t) string {
	return fmt.Sprintf("mode=%o nlink=%d owner=%d:%d size=%d mtime=%s mask=%x",
		st.Mode, st.Nlink, st.Uid, st.Gid, st.Size, instant(st.Mtime), st.Mask&unix.STATX_BASIC_STATS)
}

func instant(t unix.StatxTimestamp) string {
	if t.Sec > 1e9 {
		return "now"
	}
	return fmt.Sprintf("%d.%09d", t.Sec, t.Nsec)
}

func list(dir int, path string) (string, error) {
	fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return listFD(fd)
}

// listFD tells the entries of a directory: names, types, and whether the inode
// numbers are what stat says.
func listFD(fd int) (string, error) {
	entries, err := readEntries(fd)
	if err != nil {
		return "", err
	}
	slices.Sort(entries)
	return strings.Join(entries, " "), nil
}

func readEntries(fd int) (all []string, err error) {
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil || n == 0 {
			return all, err
		}
		for b := buf[:n]; len(b) > 0; {
			d := (*unix.Dirent)(unsafe.Pointer(&b[0]))
			name, _, _ := strings.Cut(string(b[19:d.Reclen]), "\x00")
			entry := strconv.QuoteToASCII(name) + ":" + strconv.Itoa(int(d.Type))
			var st unix.Stat_t
			if name != ".." && unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Ino != d.Ino {
				entry += ":other-inode"
			}
			all = append(all, entry)
			b = b[d.Reclen:]
		}
	}
}

// tree describes all below path, each file with its bytes and attributes.
func tree(b *strings.Builder, path string) error {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st); err != nil {
		return err
	}
	fmt.Fprintf(b, "%q %s", path, describe(&st))
	buf := make([]byte, 4096)
	if n, err := unix.Llistxattr(path, buf); err == nil && n > 0 {
		for _, name := range strings.Split(agent.Names(buf[:n]), " ") {
			value := make([]byte, 4096)
			n, err := unix.Lgetxattr(path, name, value)
			fmt.Fprintf(b, " %s=%x %v", name, value[:max(n, 0)], err)
		}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		n, err := unix.Readlink(path, buf)
		fmt.Fprintf(b, " -> %q %v", buf[:max(n, 0)], err)
	case unix.S_IFREG:
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, off := range []int64{0, int64(st.Size) - 4096} { // of huge files the ends
			data := make([]byte, 512<<10)
			n, err := unix.Pread(fd, data, max(off, 0))
			fmt.Fprintf(b, " [%d: %s %v]", n, digest(data[:max(n, 0)]), err)
			if st.Size <= uint64(len(data)) {
				break
			}
		}
	case unix.S_IFDIR:
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		entries, err := readEntries(fd)
		if err != nil {
			return err
		}
		slices.Sort(entries)
		fmt.Fprintf(b, " %s\n", strings.Join(entries, " "))
		for _, e := range entries {
			quoted := e[:strings.LastIndexByte(strings.TrimSuffix(e, ":other-inode"), ':')]
			name, _ := strconv.Unquote(quoted)
			if name == "." || name == ".." {
				continue
			}
			if err := tree(b, path+"/"+name); err != nil {
				fmt.Fprintf(b, "%q %v\n", path+"/"+name, err)
			}
		}
		return nil
	}
	b.WriteByte('\n')
	return nil
}
