// Command sbom writes what a Go program is made of, in SPDX 2.3 as JSON: sbom PROGRAM. It reads what the
// Go toolchain has put into the program. The same program makes the same bytes.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "sbom PROGRAM")
		os.Exit(2)
	}
	if err := run(os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

type document struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	SPDXID            string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      creationInfo   `json:"creationInfo"`
	Packages          []part         `json:"packages"`
	Relationships     []relationship `json:"relationships"`
}

type creationInfo struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

// part is a package of the document: the program, a module, or Go's library.
type part struct {
	SPDXID           string        `json:"SPDXID"`
	Name             string        `json:"name"`
	VersionInfo      string        `json:"versionInfo"`
	DownloadLocation string        `json:"downloadLocation"`
	FilesAnalyzed    bool          `json:"filesAnalyzed"`
	LicenseConcluded string        `json:"licenseConcluded"`
	LicenseDeclared  string        `json:"licenseDeclared"`
	CopyrightText    string        `json:"copyrightText"`
	Checksums        []checksum    `json:"checksums,omitempty"`
	ExternalRefs     []externalRef `json:"externalRefs,omitempty"`
	Comment          string        `json:"comment,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type externalRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

func run(w io.Writer, program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	created := settings["vcs.time"]
	if created == "" {
		created = "1970-01-01T00:00:00Z" // built without a repository
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	name := filepath.Base(program)
	main := part{
		SPDXID: "SPDXRef-program", Name: name, VersionInfo: settings["vcs.revision"], DownloadLocation: "NOASSERTION",
		LicenseConcluded: "NOASSERTION", LicenseDeclared: "NOASSERTION", CopyrightText: "NOASSERTION",
		Checksums: []checksum{{"SHA256", sum}},
		Comment:   fmt.Sprintf("%s/%s, module %s", settings["GOOS"], settings["GOARCH"], info.Main.Path),
	}
	d := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: name,
		DocumentNamespace: "https://" + info.Main.Path + "/spdx/" + sum,
		CreationInfo:      creationInfo{created, []string{"Tool: github.com/lockfs/lockfs/deploy/sbom"}},
		Packages:          []part{main},
		Relationships:     []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", main.SPDXID}},
	}
	modules := append([]*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}, info.Deps...)
	for i, m := range modules {
		if m.Replace != nil {
			m = m.Replace
		}
		p, err := module(fmt.Sprintf("SPDXRef-module-%d", i), m)
		if err != nil {
			return err
		}
		d.Packages = append(d.Packages, p)
		d.Relationships = append(d.Relationships, relationship{main.SPDXID, "CONTAINS", p.SPDXID})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(d)
}

func module(id string, m *debug.Module) (part, error) {
	p := part{
		SPDXID: id, Name: m.Path, VersionInfo: m.Version, DownloadLocation: "NOASSERTION",
		LicenseConcluded: "NOASSERTION", LicenseDeclared: "NOASSERTION", CopyrightText: "NOASSERTION",
		ExternalRefs: []externalRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + m.Version}},
	}
	if m.Sum == "" {
		return p, nil
	}
	// go.sum's hash is of the names and hashes of the module's files. It is no hash of a file.
	hash, ok := strings.CutPrefix(m.Sum, "h1:")
	if _, err := base64.StdEncoding.DecodeString(hash); !ok || err != nil {
		return part{}, fmt.Errorf("%s has the sum %q", m.Path, m.Sum)
	}
	p.Comment = "go.sum: " + m.Sum
	return p, nil
}
