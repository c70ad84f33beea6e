package mounts

import (
	"strings"
	"testing"
)

func TestCheckRelease(t *testing.T) {
	for release, ok := range map[string]bool{
		"5.10.0-46-amd64":              true,
		"5.15.0":                       true,
		"6.1.192":                      true,
		"7.3-rc7":                      true,
		"10.0.0":                       true,
		"5.9.16":                       false,
		"5.4.0-216-generic":            false,
		"4.18.0-553.el8_10.x86_64":     false,
		"3.10.0-1160.119.1.el7.x86_64": false,
		"gvisor":                       false,
		"":                             false,
	} {
		if err := checkRelease(release); (err == nil) != ok {
			t.Errorf("%q: %v", release, err)
		} else if err != nil && !strings.Contains(err.Error(), release) {
			t.Errorf("the refusal of %q does not name it: %v", release, err)
		}
	}
	if err := CheckKernel(); err != nil {
		t.Errorf("this kernel: %v", err)
	}
}
