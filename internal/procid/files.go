package procid

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// File is a file as /proc knows it.
type File struct {
	Dev string // major:minor of its file system, as in mountinfo
	Ino uint64
}

// maxDescriptors bounds how many descriptors FamilyHasOpen looks at. Each takes about 5 µs
// of a core. Only an attack has larger families.
const maxDescriptors = 10000

// FamilyHasOpen reports whether process pid, or an ancestor of it, has a descriptor that
// may write to the file or, with readers, read it. It reports false for processes that have
// ended or that we may not look at, after ctx has ended, and for what comes after the first
// maxDescriptors. It asks no file system but /proc: the file's own may be waiting for the
// answer.
func (p Proc) FamilyHasOpen(ctx context.Context, pid int, file File, readers bool) bool {
	left := maxDescriptors
	if p.hasOpen(ctx, pid, file, readers, &left) {
		return true
	}
	for _, ancestor := range p.Ancestors(pid) {
		if ctx.Err() != nil || left <= 0 {
			return false
		}
		if p.hasOpen(ctx, ancestor.PID, file, readers, &left) {
			return true
		}
	}
	return false
}

// hasOpen subtracts the descriptors that it looks at from left.
func (p Proc) hasOpen(ctx context.Context, pid int, file File, readers bool, left *int) bool {
	dir, err := os.Open(p.path(pid, "fdinfo"))
	if err != nil {
		return false
	}
	defer dir.Close()
	fds, _ := dir.Readdirnames(*left)
	var array [bufSize]byte
	var devs map[string]string // read when a descriptor may be the file's
	for _, fd := range fds {
		if ctx.Err() != nil {
			return false
		}
		*left--
		b, err := p.read(array[:], pid, "fdinfo/"+fd)
		if err != nil {
			continue // closed meanwhile
		}
		flags, err := strconv.ParseUint(fdinfo(b, "flags:"), 8, 64)
		ino := fdinfo(b, "ino:") // since Linux 5.14
		if err != nil || !counts(flags, readers) || ino != "" && ino != strconv.FormatUint(file.Ino, 10) {
			continue
		}
		if devs == nil {
			if devs, err = p.mountDevs(pid); err != nil {
				return false
			}
		}
		if devs[fdinfo(b, "mnt_id:")] == file.Dev && (ino != "" || p.isOf(pid, fd, file)) {
			return true
		}
	}
	return false
}

// isOf reports whether a descriptor, of which only the file system is known, refers to the
// file. A FUSE file system is not asked: the kernel has known the inode's number since the
// file was opened. Other file systems could be asked, and must not be: see FamilyHasOpen.
func (p Proc) isOf(pid int, fd string, file File) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, p.path(pid, "fd/"+fd), unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st)
	return err == nil && st.Ino == file.Ino && fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor) == file.Dev
}

// counts reports whether a descriptor with flags keeps a file locked.
func counts(flags uint64, readers bool) bool {
	return flags&unix.O_ACCMODE != unix.O_RDONLY || readers && flags&unix.O_PATH == 0
}

// fdinfo returns the value of a line of a file in /proc/PID/fdinfo.
func fdinfo(b []byte, name string) string {
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte(name)); ok {
			return string(bytes.TrimSpace(v))
		}
	}
	return ""
}

// mountDevs maps the ids of a process's mounts to their devices.
func (p Proc) mountDevs(pid int) (map[string]string, error) {
	b, err := os.ReadFile(p.path(pid, "mountinfo"))
	if err != nil {
		return nil, err
	}
	devs := make(map[string]string)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 {
			devs[f[0]] = f[2]
		}
	}
	return devs, nil
}

// MountDev returns the device, major:minor, of the topmost mount at point in the
// mount table of process pid. It fails with fs.ErrNotExist when there is none.
func (p Proc) MountDev(pid int, point string) (string, error) {
	b, err := os.ReadFile(p.path(pid, "mountinfo"))
	if err != nil {
		return "", err
	}
	escaped := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(point)
	dev := ""
	for line := range strings.Lines(string(b)) {
		if f := strings.Split(line, " "); len(f) > 4 && f[4] == escaped {
			dev = f[2]
		}
	}
	if dev == "" {
		return "", fmt.Errorf("mount at %s: %w", point, fs.ErrNotExist)
	}
	return dev, nil
}
