package netvolume

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/lockfs/lockfs/internal/mounts"
)

// A good client of each volume, of which the tests change one thing.
const (
	goodNFS     = "rw,vers=4.2,rsize=1048576,hard,proto=tcp,timeo=600,local_lock=none,lookupcache=pos,addr=10.0.0.7"
	goodCmdline = "/usr/sbin/glusterfs --attribute-timeout=0 --entry-timeout=0 --negative-timeout=0 --direct-io-mode=enable --process-name fuse --volfile-server=s --volfile-id=v "
	goodVolfile = "volume v-client-0\n    type protocol/client\nend-volume\n\nvolume v-dht\n    type cluster/distribute\nend-volume\n"
	goodJuice   = `{"Meta": {"OpenCache": 0}, "Chunk": {"Writeback": false}, "AttrTimeout": 0, "EntryTimeout": 0, "DirEntryTimeout": 0, "FuseOpts": {"EnableWriteback": false}}`
)

// at is a mount point with these files, and processes by their command lines.
func at(t *testing.T, files map[string]string, processes ...string) (point, proc string) {
	t.Helper()
	point, proc = t.TempDir(), t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		put(filepath.Join(point, name), text)
	}
	for i, p := range processes {
		put(filepath.Join(proc, fmt.Sprint(100+i), "cmdline"), strings.ReplaceAll(strings.ReplaceAll(p, "POINT", point), " ", "\x00")+"\x00")
	}
	return point, proc
}

func gluster(cmdline, volfile string) map[string]string {
	return map[string]string{
		".meta/cmdline":               `{ ` + "\n" + `  "Cmdlinestr": "` + cmdline + "\"\n}",
		".meta/graphs/active/volfile": volfile,
	}
}

// Each option that breaks rules is found, with the rules and what to set; the options
// that docs/SEMANTICS.md asks for are enough.
func TestOptions(t *testing.T) {
	translator := func(kind string) string {
		return goodVolfile + "\nvolume x\n    type performance/" + kind + "\n    option pass-through false\nend-volume\n"
	}
	type want struct {
		what, set string
		rules     []int
	}
	for name, test := range map[string]struct {
		fstype, super string
		files         map[string]string
		process       string
		flocks        bool
		want          []want
	}{
		"NFS":                 {fstype: "nfs4", super: goodNFS, flocks: true},
		"NFS by its defaults": {fstype: "nfs", super: "rw,vers=3,hard,local_lock=none", want: []want{{"lookupcache", "lookupcache=positive", nil}}},
		"NFS without a cache": {fstype: "nfs4", super: "rw,hard,noac,local_lock=none"},
		"NFS, no time":        {fstype: "nfs4", super: "rw,hard,acregmin=0,acregmax=0,acdirmin=0,acdirmax=0,local_lock=none"},
		"soft":                {fstype: "nfs4", super: strings.Replace(goodNFS, "hard", "soft", 1), want: []want{{"soft", "hard", []int{10, 19}}}},
		"softerr":             {fstype: "nfs4", super: strings.Replace(goodNFS, "hard", "softerr", 1), want: []want{{"softerr", "hard", []int{10, 19}}}},
		"softreval":           {fstype: "nfs4", super: goodNFS + ",softreval", want: []want{{"softreval", "without softreval", []int{6, 15}}}},
		"nocto":               {fstype: "nfs4", super: goodNFS + ",nocto", want: []want{{"nocto", "cto", []int{6, 15}}}},
		"nolock":              {fstype: "nfs", super: strings.Replace(goodNFS, "local_lock=none", "nolock,local_lock=all", 1)},
		"nolock, embedded": {
			fstype: "nfs", super: strings.Replace(goodNFS, "local_lock=none", "nolock,local_lock=all", 1), flocks: true,
			want: []want{{"local_lock=all", "local_lock=none", []int{1}}},
		},

		"Gluster": {fstype: "fuse.glusterfs", files: gluster(goodCmdline+"/x", goodVolfile)},
		"Gluster by its defaults": {
			fstype: "fuse.glusterfs", files: gluster("/usr/sbin/glusterfs --process-name fuse --volfile-server=s --volfile-id=v /x", translator("quick-read")+translator("md-cache")+translator("open-behind")),
			want: []want{
				{"quick-read", "performance.quick-read off", []int{6, 15}},
				{"stat-prefetch", "performance.stat-prefetch off", []int{6, 7, 15}},
				{"open-behind", "performance.open-behind off", []int{15}},
				{"direct-io-mode is the default", "direct-io-mode=enable", []int{6, 15}},
				{"attribute-timeout is the default", "attribute-timeout=0", []int{6, 15}},
				{"entry-timeout is the default", "entry-timeout=0", []int{7, 15}},
			},
		},
		"nl-cache": {fstype: "fuse.glusterfs", files: gluster(goodCmdline+"/x", translator("nl-cache")), want: []want{{"nl-cache", "performance.nl-cache off", []int{7, 15}}}},
		"Gluster, negative-timeout": {
			fstype: "fuse.glusterfs", files: gluster(strings.Replace(goodCmdline, "negative-timeout=0", "negative-timeout=0.5", 1)+"/x", goodVolfile),
			want: []want{{"negative-timeout is 0.5", "negative-timeout=0", []int{15}}},
		},
		"Gluster, writeback": {
			fstype: "fuse.glusterfs", files: gluster(goodCmdline+"--kernel-writeback-cache=yes /x", goodVolfile),
			want: []want{{"kernel-writeback-cache", "without kernel-writeback-cache", []int{6, 10, 19}}},
		},
		"Gluster, a bind mount": { // its process is seen, the volume's options are not
			fstype: "fuse.glusterfs", process: goodCmdline + "POINT",
			want: []want{{"cannot be seen", "performance.quick-read off; gluster volume set VOLUME performance.stat-prefetch off; gluster volume set VOLUME performance.open-behind off", nil}},
		},
		"Gluster in a container": {
			fstype: "fuse.glusterfs", process: goodCmdline + "/elsewhere",
			want: []want{{"cannot be seen", "entry-timeout=0", nil}},
		},

		"JuiceFS": {fstype: "fuse.juicefs", files: map[string]string{".config": goodJuice}},
		"JuiceFS with a prefix": {
			fstype: "fuse.juicefs", files: map[string]string{".config": "{}", ".jfs.config": strings.Replace(goodJuice, `"AttrTimeout": 0`, `"AttrTimeout": 1000000000`, 1)},
			want: []want{{"attr-cache is 1s", "--attr-cache 0", []int{6, 15}}},
		},
		"JuiceFS by its defaults": {
			fstype: "fuse.juicefs", process: "juicefs mount redis://h/1 POINT",
			want: []want{
				{"entry-cache is the default", "--entry-cache 0", []int{7, 15}}, {"dir-entry-cache is the default", "--dir-entry-cache 0", []int{7, 9, 15}},
				{"attr-cache is the default", "--attr-cache 0", []int{6, 15}},
			},
		},
		"JuiceFS by its process": {
			fstype: "fuse.juicefs", process: "/usr/local/bin/juicefs mount --entry-cache 0 --dir-entry-cache=0s --attr-cache 0 --writeback --open-cache 2 -o ro,writeback_cache redis://h/1 POINT",
			want: []want{
				{"open-cache is 2", "--open-cache 0", []int{6, 15}}, {"writeback:", "without --writeback", []int{6, 19}},
				{"writeback_cache", "without -o writeback_cache", []int{6, 10, 19}},
			},
		},
		"JuiceFS, not seen": {fstype: "fuse.juicefs", want: []want{{"cannot be seen", "--entry-cache 0; ", nil}}},

		"the kernel's CephFS": {fstype: "ceph", super: "rw,name=admin,secret=<hidden>,acl"},
		"ceph-fuse, numbers made up": {fstype: "fuse.ceph-fuse", files: map[string]string{"f": ""}, want: []want{
			{"client_use_faked_inos", "client_use_faked_inos = false", []int{8}},
			{"page cache is on", "fuse_disable_pagecache = true", []int{6, 15}},
		}},

		"9p":             {fstype: "9p", super: "rw,access=client,trans=virtio"},
		"9p, loose":      {fstype: "9p", super: "rw,loose,access=client", want: []want{{"cache=loose", "cache=none", []int{6, 7, 15}}}},
		"9p, new kernel": {fstype: "9p", super: "rw,cache=5,access=client", want: []want{{"cache=5", "cache=none", []int{6, 7, 15}}}},
		"virtiofs":       {fstype: "virtiofs", super: "rw", want: []want{{"cannot be seen", "virtiofsd --cache=never", nil}}},
		"SMB":            {fstype: "cifs", super: "rw,vers=3.1.1,cache=none", want: []want{{"old versions", "NFS", []int{6, 8, 15}}}},
		"vboxsf":         {fstype: "vboxsf", want: []want{{"second name", "NFS", []int{6, 8, 15}}}},
		"sshfs":          {fstype: "fuse.sshfs", want: []want{{"two files", "NFS", []int{6, 7, 8, 15}}}},
		"s3fs":           {fstype: "fuse.s3fs", want: []want{{"uploaded", "a file system", []int{6, 8, 9, 15, 19}}}},
		"another":        {fstype: "fuse.new", want: []want{{"nobody knows", "lockfs check-volume", nil}}},
	} {
		t.Run(name, func(t *testing.T) {
			var processes []string
			if test.process != "" {
				processes = []string{"/usr/sbin/sshd -D", test.process}
			}
			point, proc := at(t, test.files, processes...)
			got := lookAt(mounts.Mount{Point: point, FSType: test.fstype, Super: test.super}, point, test.flocks, proc)
			if len(got) != len(test.want) {
				t.Fatalf("%d findings, want %d:\n%v", len(got), len(test.want), got)
			}
			for i, w := range test.want {
				f := got[i]
				if !strings.Contains(f.What, w.what) || !strings.Contains(f.Set, w.set) || fmt.Sprint(f.Rules) != fmt.Sprint(w.rules) || f.Point != point {
					t.Errorf("found %+v, want %+v", f, w)
				}
				if strings.Contains(f.String(), "\n") || strings.Contains(f.String(), "%") {
					t.Errorf("not one line: %q", f)
				}
			}
		})
	}
}

// The table names rules that there are, and options with what to set.
func TestRequirements(t *testing.T) {
	doc, err := os.ReadFile("../../docs/SEMANTICS.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range volumes {
		if len(v.types) == 0 || v.name == "" {
			t.Errorf("%+v has no type or no name", v)
		}
		for _, r := range v.requirements {
			if r.set == "" {
				t.Errorf("%s, %s: what is to be set?", v.name, r.option)
			}
			for _, n := range r.rules {
				if !regexp.MustCompile(`(?m)^\*\*` + strconv.Itoa(n) + `\. `).Match(doc) {
					t.Errorf("%s, %s: there is no rule %d", v.name, r.option, n)
				}
			}
		}
	}
}

func TestLines(t *testing.T) {
	e := &RefusedError{Source: "/srv/x", Findings: Broken([]Finding{
		{Volume: "NFS", Point: "/srv", What: "mounted soft", Rules: []int{10, 19}, Set: "mount with hard"},
		{Volume: "NFS", Point: "/srv", What: "not seen", Set: "look"},
		{Volume: "NFS", Point: "/srv/x/y", What: "mounted local", Rules: []int{1}, Set: "do not"},
	})}
	want := "SOURCE /srv/x is on a volume that breaks what lockfs promises; set the options, or accept it (--accept-volume):\n" +
		"NFS at /srv: mounted soft: breaks rules 10, 19 of docs/SEMANTICS.md: mount with hard\n" +
		"NFS at /srv/x/y: mounted local: breaks rule 1 of docs/SEMANTICS.md: do not"
	if e.Error() != want {
		t.Errorf("%s\nwant\n%s", e, want)
	}
}

// What is local is not asked.
func TestLocal(t *testing.T) {
	if found, err := Look(t.TempDir(), true); len(found) > 0 || err != nil {
		t.Errorf("%v, %v", found, err)
	}
}
