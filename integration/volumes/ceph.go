package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// cephConf is of a cluster of one machine, without passwords, whose objects are in memory.
// The grace is longer than the tests stop the server: its one OSD has no other to mark it
// down, and with its read lease over it lets requests wait for ever
// (https://github.com/ceph/ceph-container/issues/1682).
const cephConf = `[global]
fsid = 5d0fdd3e-8f1c-4f3e-9f6e-5ddf3a6f0001
mon host = v2:%[1]s:3300
mon initial members = a
public addr = %[1]s
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 4294967296
mon allow pool size one = true
mon warn on pool no redundancy = false
mon data avail crit = 1
mds tick interval = 0.2
osd heartbeat grace = 120
run dir = %[2]s
admin socket = %[2]s/$name.$pid.asok
log file = %[2]s/$name.$pid.txt
mon data = %[2]s/mon
osd data = %[2]s/osd
mds data = %[2]s/mds
keyring = %[2]s/keyring
[client]
`

// cephCommands make the cluster's parts known.
const cephCommands = `osd new 5d0fdd3e-8f1c-4f3e-9f6e-5ddf3a6f0002
osd pool create meta 8
osd pool create data 8
fs new fs meta data
`

// cephClient are the options that are recommended to a client.
const cephClient = `fuse disable pagecache = true
`

// ceph is a file system of Ceph's, and two clients in user space.
func ceph(l *lab) (clients []string, err error) {
	servers, err := l.cephServers()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"a", "b"} {
		mountpoint := l.mkdir("client-" + name)
		client, err := l.start("client-"+name, "ceph-fuse", "-f", "--id", "admin", "-o", "allow_other", mountpoint)
		if err != nil {
			return nil, err
		}
		if err := l.until("the client is mounted", func() bool { return isMounted(mountpoint) }, append(servers, client)...); err != nil {
			return nil, err
		}
		l.client(len(clients), client, mountpoint)
		clients = append(clients, mountpoint)
	}
	l.servers(servers[1:]...)
	return clients, nil
}

// cephServers are a monitor, a server of objects and one of metadata.
func (l *lab) cephServers() ([]*server, error) {
	dir := l.mkdir("ceph")
	conf := l.path("ceph/ceph.conf")
	text := fmt.Sprintf(cephConf, address, dir)
	if l.recommended() {
		text += cephClient
	}
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		return nil, err
	}
	os.Setenv("CEPH_CONF", conf)
	for _, d := range []string{"mon", "osd", "mds"} {
		l.mkdir("ceph/" + d)
	}
	for _, args := range [][]string{
		{"ceph-authtool", "--create-keyring", dir + "/keyring", "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"},
		{"monmaptool", "--create", "--addv", "a", "[v2:" + address + ":3300]", "--fsid", "5d0fdd3e-8f1c-4f3e-9f6e-5ddf3a6f0001", dir + "/monmap"},
		{"ceph-mon", "--mkfs", "-i", "a", "--monmap", dir + "/monmap", "--keyring", dir + "/keyring"},
	} {
		if err := l.run(args[0], args[1:]...); err != nil {
			return nil, err
		}
	}
	mon, err := l.start("mon", "ceph-mon", "-f", "-i", "a")
	if err != nil {
		return nil, err
	}
	// The program is Python, and takes seconds to start in a guest.
	cli := exec.Command("ceph", "--connect-timeout", "60")
	cli.Stdin = strings.NewReader(cephCommands)
	if out, err := cli.CombinedOutput(); err != nil || strings.Contains(string(out), "Error ") {
		return nil, fmt.Errorf("ceph: %v\n%s\n%s", err, out, mon.tail())
	}
	if err := l.run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", "5d0fdd3e-8f1c-4f3e-9f6e-5ddf3a6f0002"); err != nil {
		return nil, err
	}
	osd, err := l.start("osd", "ceph-osd", "-f", "-i", "0")
	if err != nil {
		return nil, err
	}
	mds, err := l.start("mds", "ceph-mds", "-f", "-i", "a")
	if err != nil {
		return nil, err
	}
	active := func() bool {
		out, err := exec.Command("ceph", "mds", "stat").Output()
		return err == nil && strings.Contains(string(out), "up:active")
	}
	if err := l.until("the server of metadata is active", active, mon, osd, mds); err != nil {
		return nil, err
	}
	return []*server{mon, osd, mds}, nil
}

// cephSyncs counts what the clients were asked: on the server a write is a write.
func cephSyncs(l *lab) (map[string]int, error) {
	sockets, _ := filepath.Glob(l.path("ceph/client.admin.*.asok"))
	n := 0
	for _, socket := range sockets {
		out, err := exec.Command("ceph", "daemon", socket, "perf", "dump", "client").Output()
		if err != nil {
			continue // of a client that was killed
		}
		var dump struct {
			Client struct {
				Fsync struct {
					Count int `json:"avgcount"`
				}
			}
		}
		if err := json.Unmarshal(out, &dump); err != nil {
			return nil, fmt.Errorf("%s: %w", socket, err)
		}
		n += dump.Client.Fsync.Count
	}
	return map[string]int{"sync": n}, nil
}
