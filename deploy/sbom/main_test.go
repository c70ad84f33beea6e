package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"testing"
)

// The test's own program is one of Go's.
func TestSBOM(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out, again bytes.Buffer
	for _, w := range []*bytes.Buffer{&out, &again} {
		if err := run(w, program); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("the same program has another SBOM")
	}
	var d document
	if err := json.Unmarshal(out.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	if d.SPDXVersion != "SPDX-2.3" || d.SPDXID != "SPDXRef-DOCUMENT" || d.DataLicense != "CC0-1.0" || d.DocumentNamespace == "" {
		t.Errorf("%+v", d)
	}
	if !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`).MatchString(d.CreationInfo.Created) || len(d.CreationInfo.Creators) == 0 {
		t.Errorf("%+v", d.CreationInfo)
	}
	ids := map[string]bool{d.SPDXID: true}
	for _, p := range d.Packages {
		if ids[p.SPDXID] || p.Name == "" || p.DownloadLocation == "" {
			t.Errorf("%+v", p)
		}
		ids[p.SPDXID] = true
	}
	if d.Packages[1].Name != "stdlib" || d.Packages[1].VersionInfo == "" {
		t.Errorf("%+v", d.Packages[1])
	}
	for _, r := range d.Relationships {
		if !ids[r.Element] || !ids[r.Related] {
			t.Errorf("%+v", r)
		}
	}
}

func TestNoProgram(t *testing.T) {
	if err := run(&bytes.Buffer{}, "/no/such/program"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
