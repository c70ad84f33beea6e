package mounts

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// moveMountBeneath is MOVE_MOUNT_BENEATH, Linux 6.5.
const moveMountBeneath = 0x200

// Attrs are attributes of one mount of a file system.
type Attrs uint64

// The attributes that a mount may have besides those of the mount that it is a clone of.
const (
	ReadOnly Attrs = unix.MOUNT_ATTR_RDONLY
	NoSUID   Attrs = unix.MOUNT_ATTR_NOSUID
	NoDev    Attrs = unix.MOUNT_ATTR_NODEV
	NoExec   Attrs = unix.MOUNT_ATTR_NOEXEC
)

// attrWords are the attributes as the mount table and mount(8) write them.
var attrWords = map[string]Attrs{"ro": ReadOnly, "nosuid": NoSUID, "nodev": NoDev, "noexec": NoExec}

// ParseAttr returns the attribute of a word such as "ro".
func ParseAttr(word string) (Attrs, bool) {
	a, ok := attrWords[word]
	return a, ok
}

// Clone returns a mount of the open directory and of nothing that is mounted below it. The mount is
// nowhere until Attach or Replace. It needs Linux 5.12.
func Clone(dir *os.File, attrs Attrs) (*os.File, error) {
	fd, err := unix.OpenTree(int(dir.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open_tree %s: %w", dir.Name(), err)
	}
	tree := os.NewFile(uintptr(fd), dir.Name())
	if attrs != 0 {
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: uint64(attrs)}); err != nil {
			tree.Close()
			return nil, fmt.Errorf("mount_setattr %s: %w", dir.Name(), err)
		}
	}
	return tree, nil
}

// Attach mounts a Clone at target, on what may be mounted there.
func Attach(tree *os.File, target string) error {
	err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if err != nil {
		return &os.PathError{Op: "move_mount", Path: target, Err: err}
	}
	return nil
}

// Replace mounts a Clone in place of the mount old of that mount namespace; nil: ours. At no instant
// does the path lead to what is below both: the new mount is put beneath the old one, which is then
// removed. Before Linux 6.5 the old one stays below the new one.
//
// A program in a container can exchange a directory for a symbolic link at any time. So the path is
// looked up once, and must lead to the old mount. Then a descriptor stands for that mount.
func Replace(tree *os.File, old Mount, namespace *os.File) error {
	return inNamespace(namespace, func() error {
		fd, err := openRoot(old)
		if err == nil {
			defer unix.Close(fd)
			err = replace(tree, fd)
		}
		if err != nil {
			return fmt.Errorf("replace the mount at %s: %w", old.Point, err)
		}
		return nil
	})
}

var errElsewhere = errors.New("the path leads to another mount by now")

// openRoot opens the root of a mount with O_PATH. The working directory is /proc/thread-self.
func openRoot(m Mount) (int, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, m.Point, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS, // the mount table has none in its paths
	})
	if err != nil {
		return -1, os.NewSyscallError("openat2", err)
	}
	id, err := mountID(fmt.Sprintf("fdinfo/%d", fd))
	if err == nil && id != m.ID {
		err = errElsewhere
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// replace is Replace for a mount that openRoot has opened.
func replace(tree *os.File, root int) error {
	err := moveTo(root, tree, moveMountBeneath)
	if errors.Is(err, unix.EINVAL) {
		return moveTo(root, tree, 0)
	}
	if err != nil {
		return err
	}
	return os.NewSyscallError("umount2", unix.Unmount(fmt.Sprintf("fd/%d", root), unix.MNT_DETACH))
}

func moveTo(root int, tree *os.File, flags int) error {
	flags |= unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
	return os.NewSyscallError("move_mount", unix.MoveMount(int(tree.Fd()), "", root, "", flags))
}

// Detach unmounts the topmost mount at target lazily.
func Detach(target string) error {
	if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return &os.PathError{Op: "umount", Path: target, Err: err}
	}
	return nil
}

// inNamespace calls do on a thread in a mount namespace; nil: in ours. What do opens is its own to
// close. The working directory is our /proc/thread-self, because in a container /proc can be anything.
func inNamespace(namespace *os.File, do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			// The first thread of a process does not end, and /proc/self is what it sees. While this
			// goroutine has it, another gets another one.
			done <- inNamespace(namespace, do)
			runtime.UnlockOSThread()
			return
		}
		err := enter(namespace)
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// enter moves this thread alone.
func enter(namespace *os.File) error {
	self, err := os.Open("/proc/thread-self")
	if err != nil {
		return err
	}
	defer self.Close()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the working directory: %w", err)
	}
	if namespace != nil {
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter the mount namespace %s: %w", namespace.Name(), err)
		}
	}
	return unix.Fchdir(int(self.Fd()))
}
