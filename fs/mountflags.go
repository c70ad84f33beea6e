package fs

import "golang.org/x/sys/unix"

// mountOptions are those of the mount that the volume's root is in, as far as
// they say what its files may do: whoever runs a program, or opens a device, is
// to meet no other rule than below. Only root may choose; for others fusermount3
// forbids both set-user-ID programs and devices.
func (f *FS) mountOptions() []string {
	options := []string{"default_permissions"} // the kernel checks modes
	var st unix.Statfs_t
	if !f.root || unix.Fstatfs(f.backing.root, &st) != nil {
		return options
	}
	for _, o := range []struct {
		flag    int64
		on, off string
	}{{unix.ST_NOSUID, "nosuid", "suid"}, {unix.ST_NODEV, "nodev", "dev"}, {unix.ST_NOEXEC, "noexec", "exec"}} {
		if st.Flags&o.flag != 0 {
			options = append(options, o.on)
		} else {
			options = append(options, o.off)
		}
	}
	return options
}
