package mounts

import (
	"errors"
	"strings"
	"testing"
)

// Lines of real tables: a Debian host, a container, an NFS client, FUSE file
// systems, names with blanks, tabs, newlines and backslashes, and a name that was dropped.
const sampleTable = `22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard,resv_strict
36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 propagate_from:2 - ext3 /dev/root rw,errors=continue
612 540 0:52 / / rw,relatime - overlay overlay rw,lowerdir=/l/AB:/l/CD,upperdir=/d/diff,workdir=/d/work
71 27 0:45 /export /mnt/nfs rw,relatime shared:31 - nfs4 10.0.0.7:/export rw,vers=4.2
80 27 0:60 / /mnt/a\040b\011c\012d\134e rw - fuse.lockfs /srv/my\040data rw,user_id=0
81 27 0:61 / /mnt/ntfs rw - fuseblk /dev/sdb1 rw
82 27 0:62 / /mnt/none rw -  tmpfs rw
83 27 0:60 /a\040b/x//deleted /mnt/x rw - fuse.lockfs /srv/data rw
`

func TestParse(t *testing.T) {
	table, err := parse(strings.NewReader(sampleTable))
	if err != nil {
		t.Fatal(err)
	}
	want := []Mount{
		{22, 27, "0:21", "/proc", "/", "proc", "proc", false, "rw,relatime", "rw", false},
		{27, 1, "254:0", "/", "/", "ext4", "/dev/vda", false, "rw,relatime", "rw,discard,resv_strict", false},
		{36, 35, "98:0", "/mnt2", "/mnt1", "ext3", "/dev/root", false, "rw,noatime", "rw,errors=continue", false},
		{612, 540, "0:52", "/", "/", "overlay", "overlay", false, "rw,relatime", "rw,lowerdir=/l/AB:/l/CD,upperdir=/d/diff,workdir=/d/work", false},
		{71, 27, "0:45", "/mnt/nfs", "/export", "nfs4", "10.0.0.7:/export", true, "rw,relatime", "rw,vers=4.2", false},
		{80, 27, "0:60", "/mnt/a b\tc\nd\\e", "/", "fuse.lockfs", "/srv/my data", false, "rw", "rw,user_id=0", false},
		{81, 27, "0:61", "/mnt/ntfs", "/", "fuseblk", "/dev/sdb1", false, "rw", "rw", false},
		{82, 27, "0:62", "/mnt/none", "/", "", "tmpfs", false, "rw", "rw", false},
		{83, 27, "0:60", "/mnt/x", "/a b/x", "fuse.lockfs", "/srv/data", false, "rw", "rw", true},
	}
	if len(table) != len(want) {
		t.Fatalf("%d mounts, want %d", len(table), len(want))
	}
	for i := range want {
		if table[i] != want[i] {
			t.Errorf("line %d: %+v, want %+v", i, table[i], want[i])
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, line := range []string{
		"22 27 0:21 / /proc rw,relatime",
		"22 27 0:21 / /proc - proc proc rw",
		"22 27 0:21 / /proc rw - proc",
	} {
		if m, err := parse(strings.NewReader(line)); !errors.Is(err, errFields) {
			t.Errorf("%q: %v, %v, want errFields", line, m, err)
		}
	}
	if m, err := parse(strings.NewReader("22 x 0:21 / /proc rw - proc proc rw")); err == nil {
		t.Errorf("a parent that is no number: %v", m)
	}
	if m, err := parse(strings.NewReader("x 27 0:21 / /proc rw - proc proc rw")); err == nil {
		t.Errorf("an id that is no number: %v", m)
	}
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{
		``:           "",
		`a\040b`:     "a b",
		`\134040`:    `\040`,
		`\303\244`:   "ä",
		`a\04`:       `a\04`,
		`a\999`:      `a\999`,
		`end\`:       `end\`,
		`\040\040`:   "  ",
		`no escapes`: "no escapes",
	} {
		if got := unescape(in); got != want {
			t.Errorf("unescape(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestIsNetwork(t *testing.T) {
	for fstype, want := range map[string]bool{
		"nfs": true, "nfs4": true, "ceph": true, "cifs": true, "smb3": true,
		"9p": true, "virtiofs": true, "lustre": true, "gfs2": true, "ocfs2": true,
		"fuse": true, "fuse.sshfs": true, "fuse.glusterfs": true, FSType: true,
		"ext4": false, "xfs": false, "btrfs": false, "tmpfs": false, "overlay": false,
		"fuseblk": false, "fuseblk.ntfs": false, "zfs": false,
	} {
		if got := isNetwork(fstype); got != want {
			t.Errorf("isNetwork(%q) = %v, want %v", fstype, got, want)
		}
	}
}
