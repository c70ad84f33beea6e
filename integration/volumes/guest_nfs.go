package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// nfsd is the server's own file system.
const nfsd = "/proc/fs/nfsd"

var nfsPackages = []string{"nfs-common", "nfs-kernel-server"}

// nfs brings up the kernel's NFS server over ext4, and two clients of it.
func nfs(version string) func(*lab) ([]string, error) {
	return func(l *lab) ([]string, error) {
		export := l.mkdir("export")
		if err := l.ext4(export); err != nil {
			return nil, err
		}
		if err := l.nfsServer(export); err != nil {
			return nil, err
		}
		options := "hard,vers=" + version
		if l.recommended() {
			options += ",lookupcache=positive"
		}
		source := "/"
		if version == "3" {
			source = export
		}
		return l.guestClients(func(_ int, server, dir string) []string {
			return []string{"mount", "-t", "nfs", "-o", options, server + ":" + source, dir}
		})
	}
}

// ext4 makes an ext4 in memory and mounts it: unlike tmpfs it uses inode numbers again.
func (l *lab) ext4(dir string) error {
	if err := l.run("modprobe", "-a", "loop", "ext4"); err != nil {
		return err
	}
	image := l.path("disk")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(image, 1<<30); err != nil {
		return err
	}
	if err := l.run("mkfs.ext4", "-q", "-F", image); err != nil {
		return err
	}
	return l.run("mount", "-o", "loop", image, dir)
}

// nfsServer exports a directory by NFSv3 and, as the root, by NFSv4.
func (l *lab) nfsServer(export string) error {
	script := `
		printf '_rpc:x:996:65534::/run/rpcbind:/bin/false\nstatd:x:995:65534::/var/lib/nfs:/bin/false\n' >>/etc/passwd
		mkdir -p /run/rpcbind /var/lib/nfs/sm /var/lib/nfs/sm.bak /var/lib/nfs/v4recovery /var/lib/nfs/rpc_pipefs /etc/exports.d
		: >/var/lib/nfs/etab
		: >/var/lib/nfs/rmtab
		chown -R 995 /var/lib/nfs
		modprobe -a nfsd nfs nfsv3 nfsv4
		# Since 6.12 a client may go past a server of its own machine, straight to its disk.
		local=/sys/module/nfs/parameters/localio_enabled
		! test -e $local || echo N >$local
		mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
		mount -t rpc_pipefs rpc /var/lib/nfs/rpc_pipefs
		echo "$1 *(rw,sync,no_root_squash,no_subtree_check,insecure,fsid=0)" >/etc/exports
		rpcbind
		rpc.statd
		exportfs -ra
		rpc.mountd`
	if err := l.run("sh", "-ec", script, "sh", export); err != nil {
		return err
	}
	start := func() (string, error) {
		// Nobody has locks to reclaim but the two clients: a grace period of 10 s, the shortest,
		// is enough. Before Linux 7 it can be ended at once; later only with an nfsdcld.
		if err := l.run("rpc.nfsd", "-V", "3", "-V", "4.2", "-G", "10", "8"); err != nil {
			return "", err
		}
		const file = nfsd + "/v4_end_grace"
		return "", l.until("out of its grace period", func() bool {
			_ = os.WriteFile(file, []byte("Y"), 0)
			ended, _ := os.ReadFile(file)
			return strings.HasPrefix(string(ended), "Y")
		})
	}
	l.fault("kill server", func() (string, error) { return "", l.run("rpc.nfsd", "0") })
	l.fault("start server", start)
	// Another file system of the server, below a directory: its client mounts it when it is used.
	l.fault("export below", func() (string, error) {
		const dir = "above"
		return dir, l.run("sh", "-ec", `
			mkdir -p "$0/below"
			mountpoint -q "$0/below" || mount -t tmpfs below "$0/below"
			exportfs -o rw,sync,no_root_squash,no_subtree_check,insecure,fsid=1 "*:$0/below"`, filepath.Join(export, dir))
	})
	if _, err := start(); err != nil {
		return err
	}
	return l.traceStableWrites()
}

// stableWrites is an instance of the kernel's tracer that counts the WRITEs that clients have
// sent with the word that the server must have them on its disk before it answers.
const stableWrites = "/sys/kernel/tracing/instances/stable-writes"

// traceStableWrites has them counted from now on.
func (l *lab) traceStableWrites() error {
	return l.run("sh", "-ec", `
		mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing
		mkdir "$0"
		echo 'stable != 0' >"$0/events/nfs/nfs_initiate_write/filter"
		echo 1 >"$0/events/nfs/nfs_initiate_write/enable"`, stableWrites)
}

// nfsSyncs counts what the server was asked, and how often to have bytes on its disk: by a
// COMMIT, or by a WRITE that says so.
func nfsSyncs(*lab) (map[string]int, error) {
	counts := map[string]int{"COMMIT": 0, "WRITE": 0, "stable WRITE": 0}
	b, err := os.ReadFile("/proc/net/rpc/nfsd")
	if err != nil {
		return nil, err
	}
	// "proc3 22 …" counts procedures from 0, "proc4ops 76 …" operations from 0.
	for _, c := range []struct {
		line, name string
		at         int
	}{{"proc3", "WRITE", 7}, {"proc3", "COMMIT", 21}, {"proc4ops", "COMMIT", 5}, {"proc4ops", "WRITE", 38}} {
		n, err := numberIn(string(b), c.line, c.at+1)
		if err != nil {
			return nil, fmt.Errorf("/proc/net/rpc/nfsd: %w", err)
		}
		counts[c.name] += n
	}
	// Each CPU has a ring of what was seen last, and knows how much that was.
	rings, _ := filepath.Glob(stableWrites + "/per_cpu/cpu*/stats")
	if len(rings) == 0 {
		return nil, fmt.Errorf("no rings in %s", stableWrites)
	}
	for _, ring := range rings {
		b, err := os.ReadFile(ring)
		if err != nil {
			return nil, err
		}
		for _, line := range []string{"entries:", "overrun:"} {
			n, err := numberIn(string(b), line, 0)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", ring, err)
			}
			counts["stable WRITE"] += n
		}
	}
	counts["sync"] = counts["COMMIT"] + counts["stable WRITE"]
	return counts, nil
}

// numberIn is the number at a place, from 0, behind the first word of a line.
func numberIn(text, first string, at int) (int, error) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > at+1 && f[0] == first {
			return strconv.Atoi(f[at+1])
		}
	}
	return 0, fmt.Errorf("no number %d behind %q", at, first)
}

// guestClients mounts a volume for two clients, by a command. The kernel's client is one
// for each network namespace, and NFSv4 tells them apart by host name.
func (l *lab) guestClients(mount func(n int, server, dir string) []string) (dirs []string, err error) {
	var links []string
	for n := range 2 {
		name := string(rune('a' + n))
		s, err := l.start("client-"+name, "unshare", "-n", "-u", "sh", "-c", `hostname "$0"; exec sleep infinity`, "client-"+name)
		if err != nil {
			return nil, err
		}
		pid := strconv.Itoa(s.cmd.Process.Pid)
		if err := l.until("in namespaces", func() bool {
			comm, _ := os.ReadFile(filepath.Join("/proc", pid, "comm"))
			return string(comm) == "sleep\n"
		}, s); err != nil {
			return nil, err
		}
		net := fmt.Sprintf("10.78.%d.", n)
		script := `
			modprobe veth
			ip link add "$0" type veth peer name eth0 netns "$1"
			ip addr add "$2"1/24 dev "$0"
			ip link set "$0" up
			nsenter -t "$1" -n ip link set lo up
			nsenter -t "$1" -n ip addr add "$2"2/24 dev eth0
			nsenter -t "$1" -n ip link set eth0 up
			nsenter -t "$1" -n ip route add default via "$2"1`
		if err := l.run("sh", "-ec", script, "to-"+name, pid, net); err != nil {
			return nil, err
		}
		links = append(links, "to-"+name)
		dir := l.mkdir("client-" + name)
		if err := l.run("nsenter", append([]string{"-t", pid, "-n", "-u"}, mount(n, net+"1", dir)...)...); err != nil {
			return nil, err
		}
		l.cleanup(func() { _ = unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH) })
		dirs = append(dirs, dir)
	}
	set := func(state string) func() (string, error) {
		return func() (string, error) {
			for _, link := range links {
				if out, err := exec.Command("ip", "link", "set", link, state).CombinedOutput(); err != nil {
					return "", fmt.Errorf("ip link: %w: %s", err, out)
				}
			}
			return "", nil
		}
	}
	l.fault("freeze server", set("down")) // its clients hear nothing of it
	l.fault("thaw server", set("up"))
	return dirs, nil
}
