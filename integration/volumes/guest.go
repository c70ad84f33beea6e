package main

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A kind whose server or client is the kernel's runs in a guest of QEMU's:
//
//	volumes (outside)      unpacks a kernel and what the kind needs, boots the guest
//	  └ guest-init         the root: this machine's over 9p, with the packages and a tmpfs above
//	      └ init, lab      as outside of a guest, with guestfile's kernel
//
// No image is built, nothing is installed here, and nothing the guest does stays. It has
// no network. Without KVM the kernel is there in 5 to 15 s.

// kernelEnv names the files of a kernel's Debian packages, with commas between them: one,
// or since 7.x linux-binary and linux-modules. Without it, the guest has this Debian's.
const kernelEnv = "LOCKFS_TEST_KERNEL"

// accelEnv is QEMU's -accel: kvm is faster, where it works. It may be there and not work.
const accelEnv = "LOCKFS_TEST_ACCEL"

// guestPrograms are what a guest needs here, and guestPackages what has them.
var (
	guestPrograms = []string{"qemu-system-x86_64", "busybox", "depmod", "modprobe", "dpkg-deb", "gzip", "xz"}
	guestPackages = []string{"qemu-system-x86", "busybox-static", "kmod", "gzip", "xz-utils"}
)

//go:embed guest-init.sh
var guestInit string

// guest boots a guest and runs the lab in it.
func guest(c config, packages []string) error {
	if err := install(guestPrograms, guestPackages); err != nil {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("%w: %w", errSkip, err)
	}
	cache = filepath.Join(cache, "lockfs-volumes")
	layer, err := unpacked(cache, packages)
	if err != nil {
		return fmt.Errorf("%w: %w", errSkip, err)
	}
	kernel, err := unpackedKernel(cache)
	if err != nil {
		return fmt.Errorf("%w: %w", errSkip, err)
	}
	version, image, err := inspectKernel(kernel)
	if err != nil {
		return fmt.Errorf("%w: %w", errSkip, err)
	}
	// Shared with the guest: it starts `start`, and leaves its exit status in `status`.
	dir, err := os.MkdirTemp("", "lockfs-guest")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := initramfs(filepath.Join(dir, "initramfs"), kernel, version); err != nil {
		return err
	}
	if err := writeStart(filepath.Join(dir, "start"), c); err != nil {
		return err
	}
	args := []string{
		"-accel", cmp.Or(os.Getenv(accelEnv), "tcg,thread=multi"), "-cpu", "max", "-smp", "2", "-m", "4096",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none",
		"-kernel", image, "-initrd", filepath.Join(dir, "initramfs"),
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off", "-serial", "stdio",
	}
	for tag, path := range map[string]string{"host": "/", "layer": layer, "kernel": kernel, "lab": dir} {
		share := "local,security_model=none,multidevs=remap,id=" + tag + ",path=" + path
		if tag != "lab" {
			share += ",readonly=on"
		}
		args = append(args, "-fsdev", share, "-device", "virtio-9p-pci,fsdev="+tag+",mount_tag="+tag)
	}
	cmd := exec.Command("qemu-system-x86_64", args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// A terminal's ^C is ours to answer, and the guest does not outlive us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case <-signals:
		_ = cmd.Process.Kill()
		<-ended
		return errSignal
	}
	if err != nil {
		return fmt.Errorf("qemu: %w", err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return errors.New("the guest ended before its lab")
	}
	switch status, err := strconv.Atoi(strings.TrimSpace(string(b))); {
	case err != nil:
		return err
	case status == exitSkipped:
		return errSkip
	case status != 0:
		return fmt.Errorf("exit status %d", status)
	}
	return nil
}

// writeStart writes the script that starts the lab's init in the guest.
func writeStart(path string, c config) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	return os.WriteFile(path, fmt.Appendf(nil, "cd %s\nexport %s=init %s=%s\nmkfifo /alive\n%s <>/alive\n",
		quote(c.Repo), stageEnv, configEnv, quote(string(text)), quote(self)), 0o755)
}

// unpacked is a directory with packages of Debian's, and with what they need that is
// not installed here. Installing them would start daemons.
func unpacked(cache string, packages []string) (dir string, err error) {
	dir = filepath.Join(cache, "layer-"+strings.Join(packages, "-"))
	return dir, once(dir, func(tmp string) error {
		if len(packages) == 0 {
			return nil
		}
		return download(tmp, append([]string{"apt-get", aptWaits, "install", "-q", "-y", "--download-only", "--no-install-recommends"}, packages...))
	})
}

// unpackedKernel is a directory with the kernel that kernelEnv names, else with the one
// that linux-image-amd64 stands for.
func unpackedKernel(cache string) (dir string, err error) {
	if debs := os.Getenv(kernelEnv); debs != "" {
		files := strings.Split(debs, ",")
		dir = filepath.Join(cache, strings.TrimSuffix(filepath.Base(files[0]), ".deb"))
		return dir, once(dir, func(tmp string) error { return unpack(tmp, files) })
	}
	out, err := exec.Command("apt-cache", "depends", "--no-recommends", "--no-suggests", "linux-image-amd64").Output()
	if err != nil {
		return "", fmt.Errorf("apt-cache: %w", err)
	}
	_, name, _ := strings.Cut(string(out), "Depends: linux-image-")
	name, _, _ = strings.Cut(name, "\n")
	if name == "" {
		return "", errors.New("no linux-image-amd64 in apt's lists")
	}
	name = "linux-image-" + name
	dir = filepath.Join(cache, name)
	return dir, once(dir, func(tmp string) error { return download(tmp, []string{"apt-get", "download", "-q", name}) })
}

// download runs an apt-get that downloads packages, and unpacks them into dir.
func download(dir string, args []string) error {
	debs, err := os.MkdirTemp("", "lockfs-debs")
	if err != nil {
		return err
	}
	defer os.RemoveAll(debs)
	script := `cd "$0" && mkdir partial && set -- "$@" -o Dir::Cache::archives="$0" &&
		{ "$@" >/dev/null 2>&1 || { apt-get update -q >/dev/null; "$@" >/dev/null; }; }`
	if out, err := exec.Command("sh", append([]string{"-c", script, debs}, args...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	files, _ := filepath.Glob(filepath.Join(debs, "*.deb")) // none if the machine has them all
	return unpack(dir, files)
}

// unpack unpacks packages into dir. Files of /bin, /sbin and /lib go where the symbolic
// links of dir lead them.
func unpack(dir string, debs []string) error {
	script := `set -o pipefail; dpkg-deb --fsys-tarfile "$1" | tar -x -C "$0" --keep-directory-symlink`
	for _, deb := range debs {
		if out, err := exec.Command("bash", "-c", script, dir, deb).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w: %s", deb, err, out)
		}
	}
	return nil
}

// once has dir filled by f, unless it was before. In it /bin, /sbin and /lib lead to /usr,
// as on the machine: the guest's root has one above the other.
func once(dir string, f func(tmp string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "unpacking")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(tmp, "usr", name), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("usr/"+name, filepath.Join(tmp, name)); err != nil {
			return err
		}
	}
	if err := f(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// inspectKernel finds a kernel's version and image below dir, and has its modules known
// to modprobe.
func inspectKernel(dir string) (version, image string, err error) {
	modules, _ := filepath.Glob(filepath.Join(dir, "lib/modules/*"))
	if len(modules) != 1 {
		return "", "", fmt.Errorf("no kernel's modules in %s", dir)
	}
	version = filepath.Base(modules[0])
	// The newest packages have it beside the modules.
	for _, image := range []string{filepath.Join(dir, "boot/vmlinuz-"+version), filepath.Join(modules[0], "vmlinuz")} {
		if _, err := os.Stat(image); err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(modules[0], "modules.dep.bin")); err == nil {
			return version, image, nil
		}
		if out, err := exec.Command("depmod", "-b", dir, version).CombinedOutput(); err != nil {
			return "", "", fmt.Errorf("depmod: %w: %s", err, out)
		}
		return version, image, nil
	}
	return "", "", fmt.Errorf("no image of kernel %s in %s", version, dir)
}

// bootModules are what the guest needs to see its root.
var bootModules = []string{"virtio_pci", "9p", "9pnet_virtio", "overlay"}

// initramfs writes the guest's first file system: busybox, a few modules, a script.
func initramfs(path, kernel, version string) error {
	dir, err := os.MkdirTemp("", "lockfs-initramfs")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Mkdir(filepath.Join(dir, "modules"), 0o755); err != nil {
		return err
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	if err := copyFile(busybox, filepath.Join(dir, "busybox")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "init"), []byte(guestInit), 0o755); err != nil {
		return err
	}
	// Lines "insmod FILE" in the order of loading, and "builtin NAME". It fails if the kernel's
	// package does not list what is built in.
	args := append([]string{"-d", kernel, "-S", version, "--show-depends", "-a"}, bootModules...)
	out, _ := exec.Command("modprobe", args...).Output()
	var files []string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "insmod" && !slices.Contains(files, f[1]) {
			files = append(files, f[1])
		}
	}
	if len(files) == 0 {
		return fmt.Errorf("modprobe finds no %s for kernel %s", strings.Join(bootModules, ", "), version)
	}
	for i, file := range files {
		to := filepath.Join(dir, "modules", fmt.Sprintf("%02d.ko", i))
		if err := copyFile(file, to); err != nil {
			return err
		}
		if strings.HasSuffix(file, ".xz") {
			if out, err := exec.Command("sh", "-c", `mv "$1" "$1.xz" && xz -d "$1.xz"`, "sh", to).CombinedOutput(); err != nil {
				return fmt.Errorf("xz: %w: %s", err, out)
			}
		}
	}
	script := `cd "$1" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 >"$2"`
	if out, err := exec.Command("sh", "-c", script, "sh", dir, path).CombinedOutput(); err != nil {
		return fmt.Errorf("cpio: %w: %s", err, out)
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
