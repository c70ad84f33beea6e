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

// maxDescriptors bounds what FamilyHasOpen looks at, at 5 µs of a core each: only an attack has
// more.
const maxDescriptors = 10000

// FamilyHasOpen reports whether pid or an ancestor can write to the file by a descriptor, or with
// readers read it. Processes that have ended or that we must not see, the end of ctx, and
// descriptors after maxDescriptors count as no. It asks only /proc: the file's own file system may
// be waiting for the answer.
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

// isOf asks a FUSE file system only for what the kernel knows without it. Others must not be
// asked: see FamilyHasOpen.
func (p Proc) isOf(pid int, fd string, file File) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, p.path(pid, "fd/"+fd), unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st)
	return err == nil && st.Ino == file.Ino && fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor) == file.Dev
}

// counts reports whether a descriptor with flags keeps a file locked.
func counts(flags uint64, readers bool) bool {
	return flags&unix.O_ACCMODE != unix.O_RDONLY || readers && flags&unix.O_PATH == 0
}

func fdinfo(b []byte, name string) string {
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte(name)); ok {
			return string(bytes.TrimSpace(v))
		}
	}
	return ""
}

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

// MountDev returns the device, major:minor, of pid's topmost mount at point. Errors:
// fs.ErrNotExist.
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
