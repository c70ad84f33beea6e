package netvolume

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// believesAbsence stands for several options of NFS.
const believesAbsence = "lookupcache=all"

// askNFS reads the options for missing names. The kernel prints those that differ from its
// default.
func askNFS(f *facts) {
	cache := f.options["lookupcache"]
	if cache == "" && f.options["noac"] == "" && f.options["acdirmax"] != "0" {
		f.options[believesAbsence] = bare
	}
}

// ask9p translates the cache option of older kernels to that of newer ones.
func ask9p(f *facts) {
	for _, mode := range []string{"loose", "fscache", "mmap", "readahead"} {
		if f.options[mode] != "" {
			f.options["cache"] = mode
		}
	}
}

// askGluster reads the client's command line and graph, virtual files at the root of the mount,
// which a bind mount need not show.
func askGluster(f *facts) {
	if line, err := readSome(filepath.Join(f.m.Point, ".meta", "cmdline")); err == nil {
		var said struct{ Cmdlinestr string }
		if json.Unmarshal(line, &said) == nil && said.Cmdlinestr != "" {
			f.client = flagsOf(strings.Fields(said.Cmdlinestr))
		}
	}
	if f.client == nil {
		f.client = f.process("glusterfs", "glusterfsd")
	}
	graph, err := readSome(filepath.Join(f.m.Point, ".meta", "graphs", "active", "volfile"))
	if err != nil {
		return
	}
	f.volume = make(map[string]string)
	for line := range strings.Lines(string(graph)) {
		if kind, ok := strings.CutPrefix(strings.TrimSpace(line), "type "); ok {
			f.volume[kind] = bare
		}
	}
	if len(f.volume) == 0 {
		f.volume = nil // not a graph
	}
}

// askJuice reads the client's configuration, a virtual file with times in nanoseconds.
func askJuice(f *facts) {
	for _, name := range []string{".config", ".jfs.config"} {
		text, err := readSome(filepath.Join(f.m.Point, name))
		if err != nil {
			continue
		}
		var said struct {
			AttrTimeout, EntryTimeout, DirEntryTimeout *time.Duration
			NegEntryTimeout                            time.Duration
			Meta                                       struct{ OpenCache time.Duration }
			Chunk                                      struct{ Writeback bool }
			FuseOpts                                   struct{ EnableWriteback bool }
		}
		if json.Unmarshal(text, &said) != nil || said.AttrTimeout == nil || said.EntryTimeout == nil || said.DirEntryTimeout == nil {
			continue
		}
		f.client = map[string]string{
			"attr-cache": said.AttrTimeout.String(), "entry-cache": said.EntryTimeout.String(), "dir-entry-cache": said.DirEntryTimeout.String(),
			"negative-entry-cache": said.NegEntryTimeout.String(), "open-cache": said.Meta.OpenCache.String(), "writeback": fmt.Sprint(said.Chunk.Writeback),
			"writeback_cache": fmt.Sprint(said.FuseOpts.EnableWriteback),
		}
		return
	}
	f.client = f.process("juicefs")
}

// firstCephInode is the smallest inode number that a metadata server assigns to a file.
const firstCephInode = 1 << 40

// askCeph tests the client's behaviour, because its configuration can come from anywhere.
func askCeph(f *facts) {
	f.askNumbers()
	if cached, err := mayMap(f.dir); err == nil {
		f.client = map[string]string{"fuse_disable_pagecache": fmt.Sprint(!cached)}
	}
}

// mayMap reports whether a new file in dir can be mapped as shared, which only the page cache can.
// The view hides the file's name.
func mayMap(dir string) (bool, error) {
	file, err := os.CreateTemp(dir, ".lockfs-volume.probe-")
	if err != nil {
		return false, err
	}
	defer file.Close()
	defer os.Remove(file.Name())
	mapping, err := syscall.Mmap(int(file.Fd()), 0, os.Getpagesize(), syscall.PROT_READ, syscall.MAP_SHARED)
	switch err {
	case nil:
		return true, syscall.Munmap(mapping)
	case syscall.ENODEV:
		return false, nil
	}
	return false, err
}

// askNumbers finds out whether the client makes up inode numbers.
func (f *facts) askNumbers() {
	dir, err := os.Open(f.dir)
	if err != nil {
		return
	}
	defer dir.Close()
	some, _ := dir.Readdirnames(8)
	f.volume = make(map[string]string) // an empty root shows nothing; the marker will
	var root syscall.Stat_t
	for i, name := range append([]string{"."}, some...) {
		var st syscall.Stat_t
		if syscall.Lstat(filepath.Join(f.dir, name), &st) != nil {
			continue
		}
		if i == 0 {
			root = st
		}
		if st.Ino != 1 && st.Dev == root.Dev { // 1: the root
			f.volume["client_use_faked_inos"] = fmt.Sprint(st.Ino < firstCephInode)
		}
	}
}

// process returns the options of the client: one of programs with the mount point as argument.
func (f *facts) process(programs ...string) map[string]string {
	lines, _ := filepath.Glob(filepath.Join(f.proc, "[0-9]*", "cmdline"))
	for _, line := range lines {
		text, err := readSome(line)
		if err != nil {
			continue
		}
		args := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
		if slices.Contains(programs, filepath.Base(args[0])) && slices.ContainsFunc(args[1:], func(a string) bool { return a != "" && filepath.Clean(a) == f.m.Point }) {
			return flagsOf(args[1:])
		}
	}
	return nil
}

// flagsOf reads a command line: --name=value, --name value, --name, and -o with a list.
func flagsOf(args []string) map[string]string {
	flags := make(map[string]string)
	for i, arg := range args {
		next := ""
		if i+1 < len(args) {
			next = args[i+1]
		}
		if arg == "-o" {
			for name, value := range splitOptions(next) {
				flags[name] = value
			}
			continue
		}
		name, ok := strings.CutPrefix(arg, "--")
		if !ok {
			continue
		}
		name, value, given := strings.Cut(name, "=")
		switch {
		case given:
		case next == "" || strings.HasPrefix(next, "-") || strings.HasPrefix(next, "/"):
			value = bare
		default:
			value = next
		}
		flags[name] = value
	}
	return flags
}

// maxRead bounds the bytes read of a file that may be anything.
const maxRead = 4 << 20

func readSome(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRead))
}
