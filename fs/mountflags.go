package fs

import "golang.org/x/sys/unix"

// inherited are default_permissions, and the volume's nosuid, nodev and noexec, so that
// programs and devices follow the same rules, and below, what is mounted below the volume forbids.
// fusermount3 forbids set-user-ID programs and devices to all but root.
func (f *FS) inherited(below int64) []string {
	options := []string{"default_permissions"} // the kernel checks modes
	var st unix.Statfs_t
	if !f.root || unix.Fstatfs(f.backing.root, &st) != nil {
		return options
	}
	for _, o := range []struct {
		flag    int64
		on, off string
	}{{unix.ST_NOSUID, "nosuid", "suid"}, {unix.ST_NODEV, "nodev", "dev"}, {unix.ST_NOEXEC, "noexec", "exec"}} {
		if (int64(st.Flags)|below)&o.flag != 0 {
			options = append(options, o.on)
		} else {
			options = append(options, o.off)
		}
	}
	return options
}
