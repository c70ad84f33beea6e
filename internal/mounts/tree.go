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
	return move(tree, target, 0)
}

// Replace mounts a Clone at target in place of the topmost mount there. At no instant does the path
// lead to what is below both: the new mount is put beneath the old one, which is then removed. Before
// Linux 6.5 the old one stays below the new one.
func Replace(tree *os.File, target string) error {
	err := move(tree, target, moveMountBeneath)
	if errors.Is(err, unix.EINVAL) {
		return Attach(tree, target)
	}
	if err != nil {
		return err
	}
	return Detach(target)
}

func move(tree *os.File, target string, flags int) error {
	if err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH|flags); err != nil {
		return &os.PathError{Op: "move_mount", Path: target, Err: err}
	}
	return nil
}

// Detach unmounts the topmost mount at target lazily.
func Detach(target string) error {
	if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return &os.PathError{Op: "umount", Path: target, Err: err}
	}
	return nil
}

// Inside calls do on a thread in the mount namespace of a process. What do opens is its own to close.
func Inside(namespace *os.File, do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			// The first thread of a process does not end, and /proc/self is what it sees. While this
			// goroutine has it, another gets another one.
			done <- Inside(namespace, do)
			runtime.UnlockOSThread()
			return
		}
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS)
		}
		if err != nil {
			err = fmt.Errorf("enter the mount namespace %s: %w", namespace.Name(), err)
		} else {
			err = do()
		}
		done <- err
	}()
	return <-done
}
