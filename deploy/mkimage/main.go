// Command mkimage makes a container image FROM scratch without Docker, of files and directories that stand ready:
//
//	mkimage [-arch ARCH] OUT.tar NAME:TAG ENTRYPOINT FILE=DEST...
//	mkimage -oci [-arch ARCH,ARCH...] OUT.tar NAME:TAG ENTRYPOINT FILE=DEST...
//
// OUT.tar is for 'docker load', 'ctr images import', 'kind load image-archive' and 'skopeo copy docker-archive:OUT.tar'.
// With -oci it is an OCI layout with one index of an image for each architecture, for 'skopeo copy --all
// oci-archive:OUT.tar': ARCH in FILE stands for the architecture. The same files make the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

func main() {
	arch := flag.String("arch", runtime.GOARCH, "architecture of the image, or several with -oci")
	oci := flag.Bool("oci", false, "write an OCI layout")
	flag.Parse()
	if flag.NArg() < 4 {
		fmt.Fprintln(os.Stderr, "mkimage [-oci] [-arch ARCH] OUT.tar NAME:TAG ENTRYPOINT FILE=DEST...")
		os.Exit(2)
	}
	make := func() error { return run(flag.Arg(0), flag.Arg(1), flag.Arg(2), *arch, flag.Args()[3:]) }
	if *oci {
		make = func() error {
			return runOCI(flag.Arg(0), flag.Arg(1), flag.Arg(2), strings.Split(*arch, ","), flag.Args()[3:])
		}
	}
	if err := make(); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func run(out, name, entrypoint, arch string, files []string) error {
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	if err := write(f, name, entrypoint, arch, files); err != nil {
		f.Close()
		return errors.Join(err, os.Remove(out))
	}
	return f.Close()
}

// write writes an image of one layer, in the format of 'docker save'.
func write(w io.Writer, name, entrypoint, arch string, files []string) error {
	layer, err := newLayer(files)
	if err != nil {
		return err
	}
	layerID := fmt.Sprintf("%x", sha256.Sum256(layer))
	config, err := json.Marshal(imageConfig(entrypoint, arch, layerID))
	if err != nil {
		return err
	}
	configFile := fmt.Sprintf("%x.json", sha256.Sum256(config))
	manifest, err := json.Marshal([]any{map[string]any{"Config": configFile, "RepoTags": []string{name}, "Layers": []string{layerID + ".tar"}}})
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	return errors.Join(
		add(t, configFile, 0o644, config), add(t, layerID+".tar", 0o644, layer), add(t, "manifest.json", 0o644, manifest),
		t.Close())
}

// imageConfig is the configuration of an image with one layer.
func imageConfig(entrypoint, arch, layerID string) map[string]any {
	return map[string]any{
		"architecture": arch, "os": "linux",
		"config":  map[string]any{"Entrypoint": []string{entrypoint}, "Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + layerID}},
		"history": []any{map[string]any{"created_by": "mkimage"}},
	}
}

func add(t *tar.Writer, name string, mode fs.FileMode, b []byte) error {
	if err := t.WriteHeader(&tar.Header{Name: name, Mode: int64(mode.Perm()), Size: int64(len(b)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err := t.Write(b)
	return err
}

// layer is a root file system that is being made.
type layer struct {
	*tar.Writer
	dirs map[string]bool
}

func newLayer(files []string) ([]byte, error) {
	var b bytes.Buffer
	l := layer{tar.NewWriter(&b), make(map[string]bool)}
	for _, file := range files {
		from, to, ok := strings.Cut(file, "=")
		if !ok {
			return nil, fmt.Errorf("%q: want FILE=DEST", file)
		}
		if err := l.copy(from, to); err != nil {
			return nil, err
		}
	}
	err := l.Close()
	return b.Bytes(), err
}

// copy copies a file, or a directory with everything below it, to to.
func (l *layer) copy(from, to string) error {
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path.Join("/", to, filepath.ToSlash(rel)), "/")
		switch {
		case d.IsDir():
			return l.mkdir(name)
		case d.Type() == fs.ModeSymlink && file != from:
			target, err := os.Readlink(file)
			if err != nil {
				return err
			}
			return l.WriteHeader(&tar.Header{Name: name, Linkname: target, Mode: 0o777, Typeflag: tar.TypeSymlink})
		}
		if err := l.mkdir(path.Dir(name)); err != nil {
			return err
		}
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return add(l.Writer, name, info.Mode(), content)
	})
}

// mkdir makes name and the directories above it.
func (l *layer) mkdir(name string) error {
	if name == "" || name == "." || l.dirs[name] {
		return nil
	}
	if err := l.mkdir(path.Dir(name)); err != nil {
		return err
	}
	l.dirs[name] = true
	return l.WriteHeader(&tar.Header{Name: name + "/", Mode: 0o755, Typeflag: tar.TypeDir})
}
