package main

import (
	"fmt"
	"os"
	"strings"
)

var smbPackages = []string{"samba", "cifs-utils"}

// smbConf is of a server of one machine with one user, root.
const smbConf = `[global]
server role = standalone server
server min protocol = SMB3_11
disable netbios = yes
smb ports = 445
load printers = no
disable spoolss = yes
passdb backend = tdbsam:%[1]s/passdb.tdb
private dir = %[1]s
lock directory = %[1]s
state directory = %[1]s
cache directory = %[1]s
pid directory = %[1]s
ncalrpc dir = %[1]s/ncalrpc
log file = %[1]s/samba.txt
%[3]s
[share]
path = %[2]s
read only = no
`

// smbServer are options of a server that gives its clients nothing to cache.
const smbServer = `smb2 leases = no
oplocks = no
level2 oplocks = no
kernel oplocks = no
case sensitive = yes
mangled names = no
store dos attributes = no
map archive = no
`

// smbClient are options of a client that caches nothing.
var smbClient = []string{"hard", "cache=none", "actimeo=0", "closetimeo=0", "nohandlecache", "nolease", "nobrl", "serverino", "mfsymlinks"}

// smb brings up Samba over ext4, and two of the kernel's clients.
func smb(l *lab) ([]string, error) {
	share, dir := l.mkdir("share"), l.mkdir("samba")
	if err := l.ext4(share); err != nil {
		return nil, err
	}
	options, server := []string{"vers=3.1.1", "username=root", "password=lab"}, ""
	if l.recommended() {
		options, server = append(options, smbClient...), smbServer
	}
	conf := l.path("samba/smb.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, smbConf, dir, share, server), 0o644); err != nil {
		return nil, err
	}
	script := `modprobe cifs
		mkdir -p "$1/ncalrpc" "$1/msg.lock" /var/log/samba /run/samba
		printf 'lab\nlab\n' | smbpasswd -c "$0" -L -s -a root`
	if err := l.run("sh", "-ec", script, conf, dir); err != nil {
		return nil, err
	}
	smbd, err := l.start("smbd", "smbd", "-F", "--no-process-group", "--debug-stdout", "-s", conf)
	if err != nil {
		return nil, err
	}
	listening := func() bool {
		b, _ := os.ReadFile("/proc/net/tcp")
		return strings.Contains(string(b), "00000000:01BD 00000000:0000 0A")
	}
	if err := l.until("listening", listening, smbd); err != nil {
		return nil, err
	}
	l.fault("kill server", func() (string, error) {
		smbd.kill()
		return "", nil
	})
	l.fault("start server", func() (string, error) {
		if err := smbd.start(); err != nil {
			return "", err
		}
		return "", l.until("listening", listening, smbd)
	})
	return l.guestClients(func(_ int, server, dir string) []string {
		return []string{"mount", "-t", "cifs", "-o", strings.Join(options, ","), "//" + server + "/share", dir}
	})
}
