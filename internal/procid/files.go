package procid

import (
	"bytes"
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

// HasOpen reports whether process pid has a descriptor that may write to the
// file or, with readers, one that may read it. Of a process that is gone, or not ours to look at, it says no. It
// asks no file system but /proc: the file's may be waiting for the answer.
func (p Proc) HasOpen(pid int, file File, readers bool) bool {
	dir := p.path(pid, "fdinfo")
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	var array [bufSize]byte
	var devs map[string]string // read when an inode number matches
	for _, fd := range fds {
		b, err := p.read(array[:], pid, "fdinfo/"+fd.Name())
		if err != nil {
			continue // closed meanwhile
		}
		flags, err := strconv.ParseUint(fdinfo(b, "flags:"), 8, 64)
		if err != nil || !counts(flags, readers) || fdinfo(b, "ino:") != strconv.FormatUint(file.Ino, 10) {
			continue
		}
		if devs == nil {
			if devs, err = p.mountDevs(pid); err != nil {
				return false
			}
		}
		if devs[fdinfo(b, "mnt_id:")] == file.Dev {
			return true
		}
	}
	return false
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
