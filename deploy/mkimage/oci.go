package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// The media types of an OCI image layout.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// descriptor is how the parts of a layout name each other.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// layout is an OCI image layout that is being written.
type layout struct {
	*tar.Writer
	written map[string]bool
}

// blob writes a part and returns its descriptor.
func (l *layout) blob(mediaType string, content []byte) (descriptor, error) {
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	d := descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(content)}
	if l.written[sum] {
		return d, nil
	}
	l.written[sum] = true
	return d, add(l.Writer, "blobs/sha256/"+sum, 0o644, content)
}

func (l *layout) json(mediaType string, v any) (descriptor, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return l.blob(mediaType, b)
}

func runOCI(out, name, entrypoint string, archs, files []string) error {
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	if err := writeOCI(f, name, entrypoint, archs, files); err != nil {
		f.Close()
		return errors.Join(err, os.Remove(out))
	}
	return f.Close()
}

// writeOCI writes one index of an image for each architecture. ARCH in the name of a file stands for
// the architecture.
func writeOCI(w io.Writer, name, entrypoint string, archs, files []string) error {
	l := &layout{tar.NewWriter(w), make(map[string]bool)}
	if err := add(l.Writer, "oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	var manifests []descriptor
	for _, arch := range archs {
		d, err := l.image(entrypoint, arch, files)
		if err != nil {
			return err
		}
		manifests = append(manifests, d)
	}
	index, err := l.json(typeIndex, map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": manifests})
	if err != nil {
		return err
	}
	_, tag, _ := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
	index.Annotations = map[string]string{
		"io.containerd.image.name":          name,
		"org.opencontainers.image.ref.name": tag,
	}
	top, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": []descriptor{index}})
	if err != nil {
		return err
	}
	return errors.Join(add(l.Writer, "index.json", 0o644, top), l.Close())
}

func (l *layout) image(entrypoint, arch string, files []string) (descriptor, error) {
	own := make([]string, len(files))
	for i, f := range files {
		own[i] = strings.ReplaceAll(f, "ARCH", arch)
	}
	plain, err := newLayer(own)
	if err != nil {
		return descriptor{}, err
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed) // without a name or a time
	if _, err := z.Write(plain); err != nil {
		return descriptor{}, err
	}
	if err := z.Close(); err != nil {
		return descriptor{}, err
	}
	config, err := l.json(typeConfig, imageConfig(entrypoint, arch, fmt.Sprintf("%x", sha256.Sum256(plain))))
	if err != nil {
		return descriptor{}, err
	}
	layer, err := l.blob(typeLayer, packed.Bytes())
	if err != nil {
		return descriptor{}, err
	}
	d, err := l.json(typeManifest, map[string]any{"schemaVersion": 2, "mediaType": typeManifest, "config": config, "layers": []descriptor{layer}})
	d.Platform = &platform{arch, "linux"}
	return d, err
}
