package netvolume

import (
	"slices"
	"strings"
	"time"
)

type volume struct {
	name         string
	types        []string // in the table of mounts
	ask          func(*facts)
	requirements []requirement
}

type origin uint8

const (
	ofMount  origin = iota // in the table of mounts
	ofClient               // on the command line of the client's process
	ofVolume               // the volume itself says it
	always                 // no option helps
)

// requirement is an option that a volume must have.
type requirement struct {
	from   origin
	option string
	holds  func(value string) bool // "" if it is not given
	what   string                  // what is wrong if it does not hold; %: the value
	rules  []int                   // of docs/SEMANTICS.md, which are then broken; none: it is advice
	set    string                  // what an operator does
	flocks bool                    // only the embedded lock service needs it
}

func (r requirement) describe(value string) string {
	if value == "" {
		value = "the default"
	}
	return strings.ReplaceAll(r.what, "%", value)
}

func volumeOf(fstype string) *volume {
	i := slices.IndexFunc(volumes, func(v volume) bool { return slices.Contains(v.types, fstype) })
	if i < 0 {
		return nil
	}
	return &volumes[i]
}

// Tests of values.
var (
	never = func(string) bool { return false }
	off   = func(v string) bool { return !isOn(v) }
	on    = isOn
	zero  = isZero
)

func isOn(v string) bool {
	return slices.Contains([]string{bare, "on", "yes", "true", "enable"}, strings.ToLower(v))
}

// isZero accepts a number with or without a unit; "" is not zero.
func isZero(v string) bool {
	if d, err := time.ParseDuration(v); err == nil {
		return d == 0
	}
	return v != "" && strings.Trim(v, "0.") == ""
}

// volumes lists the network volumes tested with two clients, and those that no option makes safe.
var volumes = []volume{
	{
		name: "NFS", types: []string{"nfs", "nfs4"}, ask: askNFS,
		requirements: []requirement{
			{from: ofMount, option: "soft", holds: off, what: "mounted soft: a write that has failed may land later", rules: []int{10, 19}, set: "mount with hard"},
			{from: ofMount, option: "softerr", holds: off, what: "mounted softerr: a write that has failed may land later", rules: []int{10, 19}, set: "mount with hard"},
			{from: ofMount, option: "softreval", holds: off, what: "mounted softreval: old attributes are believed while the server is away", rules: []int{6, 15}, set: "mount without softreval"},
			{from: ofMount, option: "nocto", holds: off, what: "mounted nocto: an open does not ask the server", rules: []int{6, 15}, set: "mount with cto"},
			{from: ofMount, option: "local_lock", holds: func(v string) bool { return v != "all" && v != "flock" }, what: "mounted local_lock=%: the embedded lock service excludes no other machine", rules: []int{1}, set: "mount with local_lock=none, without nolock", flocks: true},
			{from: ofMount, option: believesAbsence, holds: off, what: "a name made elsewhere can be missed for a moment (lookupcache=all)", set: "mount with lookupcache=positive"},
		},
	},
	{
		name: "GlusterFS", types: []string{"fuse.glusterfs"}, ask: askGluster,
		requirements: []requirement{
			{from: ofVolume, option: "performance/quick-read", holds: off, what: "quick-read is on: old bytes are read", rules: []int{6, 15}, set: "gluster volume set VOLUME performance.quick-read off"},
			{from: ofVolume, option: "performance/md-cache", holds: off, what: "stat-prefetch is on: old attributes are believed", rules: []int{6, 7, 15}, set: "gluster volume set VOLUME performance.stat-prefetch off"},
			{from: ofVolume, option: "performance/open-behind", holds: off, what: "open-behind is on: what is replaced after its open cannot be read", rules: []int{15}, set: "gluster volume set VOLUME performance.open-behind off"},
			{from: ofVolume, option: "performance/nl-cache", holds: off, what: "nl-cache is on: a name made elsewhere is not seen", rules: []int{7, 15}, set: "gluster volume set VOLUME performance.nl-cache off"},
			{from: ofClient, option: "direct-io-mode", holds: on, what: "direct-io-mode is %: old bytes are read", rules: []int{6, 15}, set: "mount with direct-io-mode=enable"},
			{from: ofClient, option: "attribute-timeout", holds: zero, what: "attribute-timeout is %: old attributes are believed", rules: []int{6, 15}, set: "mount with attribute-timeout=0"},
			{from: ofClient, option: "entry-timeout", holds: zero, what: "entry-timeout is %: old names are believed", rules: []int{7, 15}, set: "mount with entry-timeout=0"},
			{from: ofClient, option: "negative-timeout", holds: func(v string) bool { return v == "" || isZero(v) }, what: "negative-timeout is %: a name made elsewhere is not seen", rules: []int{15}, set: "mount with negative-timeout=0"},
			{from: ofClient, option: "kernel-writeback-cache", holds: off, what: "kernel-writeback-cache is %: the kernel writes when it likes", rules: []int{6, 10, 19}, set: "mount without kernel-writeback-cache"},
		},
	},
	{
		name: "JuiceFS", types: []string{"fuse.juicefs"}, ask: askJuice,
		requirements: []requirement{
			{from: ofClient, option: "entry-cache", holds: zero, what: "entry-cache is %: old names are believed", rules: []int{7, 15}, set: "juicefs mount --entry-cache 0"},
			{from: ofClient, option: "dir-entry-cache", holds: zero, what: "dir-entry-cache is %: old names are believed", rules: []int{7, 9, 15}, set: "juicefs mount --dir-entry-cache 0"},
			{from: ofClient, option: "attr-cache", holds: zero, what: "attr-cache is %: old attributes are believed", rules: []int{6, 15}, set: "juicefs mount --attr-cache 0"},
			{from: ofClient, option: "open-cache", holds: func(v string) bool { return v == "" || isZero(v) }, what: "open-cache is %: an open does not ask", rules: []int{6, 15}, set: "juicefs mount --open-cache 0"},
			{from: ofClient, option: "negative-entry-cache", holds: func(v string) bool { return v == "" || isZero(v) }, what: "negative-entry-cache is %: a name made elsewhere is not seen", rules: []int{15}, set: "juicefs mount --negative-entry-cache 0"},
			{from: ofClient, option: "writeback", holds: off, what: "writeback: others read what was not uploaded yet", rules: []int{6, 19}, set: "juicefs mount without --writeback"},
			{from: ofClient, option: "writeback_cache", holds: off, what: "writeback_cache: the kernel writes when it likes", rules: []int{6, 10, 19}, set: "juicefs mount without -o writeback_cache"},
		},
	},
	{
		name: "CephFS (ceph-fuse)", types: []string{"fuse.ceph-fuse", "fuse.ceph"}, ask: askCeph,
		requirements: []requirement{
			{from: ofVolume, option: "client_use_faked_inos", holds: off, what: "client_use_faked_inos: each node has numbers of its own for the inodes", rules: []int{8}, set: "set client_use_faked_inos = false in ceph.conf, and mount again"},
			{from: ofClient, option: "fuse_disable_pagecache", holds: on, what: "the kernel's page cache is on: old bytes are read", rules: []int{6, 15}, set: "set fuse_disable_pagecache = true in ceph.conf, and mount again"},
		},
	},
	{name: "CephFS", types: []string{"ceph"}},
	{
		name: "SMB", types: []string{"cifs", "smb3", "smb2", "smbfs"},
		requirements: []requirement{
			{from: always, holds: never, what: "readers stay on old versions, and two names of a file can be two files", rules: []int{6, 8, 15}, set: "use NFS for the same directory"},
		},
	},
	{
		name: "9p", types: []string{"9p"}, ask: ask9p,
		requirements: []requirement{
			{from: ofMount, option: "cache", holds: func(v string) bool { return v == "" || v == "none" || v == "0" || v == "0x0" }, what: "mounted cache=%: old bytes and names are believed", rules: []int{6, 7, 15}, set: "mount with cache=none"},
		},
	},
	{
		name: "virtiofs", types: []string{"virtiofs"},
		requirements: []requirement{
			{from: ofClient, option: "cache", holds: func(v string) bool { return v == "never" }, set: "virtiofsd --cache=never on the host: its default believes names and attributes for 1 s"},
		},
	},
	{
		name: "VirtualBox shared folders", types: []string{"vboxsf"},
		requirements: []requirement{
			{from: always, holds: never, what: "old attributes are believed, and a file gets no second name", rules: []int{6, 8, 15}, set: "use NFS for the same directory"},
		},
	},
	{
		name: "sshfs", types: []string{"fuse.sshfs"},
		requirements: []requirement{
			{from: always, holds: never, what: "a file with two names is two files, old names and attributes are believed", rules: []int{6, 7, 8, 15}, set: "use NFS for the same directory"},
		},
	},
	{
		name: "an object store", types: []string{"fuse.s3fs", "fuse.rclone"},
		requirements: []requirement{
			{from: always, holds: never, what: "a file is uploaded after its close, a directory is not renamed at once, a file gets no second name", rules: []int{6, 8, 9, 15, 19}, set: "use a file system"},
		},
	},
}
