package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// gluster is a volume of one brick and two clients of GlusterFS.
func gluster(l *lab) (clients []string, err error) {
	if err := l.inPlaceOf("/var/lib/glusterd", "/var/log/glusterfs"); err != nil {
		return nil, err
	}
	glusterd, err := l.start("glusterd", "glusterd", "-N", "--log-file", l.path("glusterd.txt"))
	if err != nil {
		return nil, err
	}
	cli := func(args ...string) error {
		return l.run("gluster", append([]string{"--mode=script"}, args...)...)
	}
	if err := l.until("glusterd answers", func() bool { return cli("pool", "list") == nil }, glusterd); err != nil {
		return nil, err
	}
	settings := [][]string{{"volume", "create", "v", address + ":" + l.mkdir("brick/v"), "force"}}
	if l.recommended() {
		settings = append(settings,
			[]string{"volume", "set", "v", "performance.quick-read", "off"},
			[]string{"volume", "set", "v", "performance.stat-prefetch", "off"},
			[]string{"volume", "set", "v", "performance.open-behind", "off"})
	}
	settings = append(settings, []string{"volume", "start", "v"}, []string{"volume", "profile", "v", "start"})
	for _, s := range settings {
		if err := cli(s...); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"a", "b"} {
		dir := l.mkdir("client-" + name)
		args := []string{"glusterfs", "-N", "--volfile-server", address, "--volfile-id", "v", "--log-file", l.path("client-" + name + ".txt")}
		if l.recommended() {
			args = append(args, "--direct-io-mode=enable", "--attribute-timeout=0", "--entry-timeout=0", "--negative-timeout=0")
		}
		client, err := l.start("client-"+name, append(args, dir)...)
		if err != nil {
			return nil, err
		}
		if err := l.until("the client is mounted", func() bool { return isMounted(dir) }, client); err != nil {
			return nil, err
		}
		l.client(len(clients), client, dir)
		clients = append(clients, dir)
	}
	brick := func() (string, error) {
		found, _ := filepath.Glob("/run/gluster/vols/v/*.pid")
		if len(found) != 1 {
			return "", fmt.Errorf("no brick: %v", found)
		}
		pid, err := os.ReadFile(found[0])
		return strings.TrimSpace(string(pid)), err
	}
	for name, signal := range map[string]string{"freeze server": "-STOP", "thaw server": "-CONT", "kill server": "-KILL"} {
		l.fault(name, func() (string, error) {
			pid, err := brick()
			if err != nil {
				return "", err
			}
			return "", l.run("kill", signal, pid)
		})
	}
	l.fault("start server", func() (string, error) { return "", cli("volume", "start", "v", "force") })
	return clients, nil
}

// glusterSyncs counts what the brick was asked, by its profile.
func glusterSyncs(*lab) (map[string]int, error) {
	out, err := exec.Command("gluster", "--mode=script", "volume", "profile", "v", "info", "cumulative").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("gluster volume profile: %w: %s", err, out)
	}
	// "%-latency Avg us Min us Max us CALLS NAME"
	counts := map[string]int{"FSYNC": 0, "FLUSH": 0, "WRITE": 0}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		if _, ok := counts[f[len(f)-1]]; ok {
			if counts[f[len(f)-1]], err = strconv.Atoi(f[len(f)-2]); err != nil {
				return nil, fmt.Errorf("gluster volume profile: %w: %s", err, line)
			}
		}
	}
	counts["sync"] = counts["FSYNC"]
	return counts, nil
}
