package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

// Pods are named as kubectl wants them named or, if the mount did not know how, by
// their UIDs; and nothing that a holder calls itself reaches the terminal as it is.
func TestListNamesPods(t *testing.T) {
	entry := func(h lockmgr.Holder) lockmgr.Entry {
		key, err := lockmgr.FileKey("f")
		if err != nil {
			t.Fatal(err)
		}
		h.AcquisitionID, h.Node = lockmgr.AcquisitionID(uuid.MustParse("0b5d5c4e-0000-4000-8000-000000000000")), "n1"
		return lockmgr.Entry{Key: key, Holder: h, Held: true, Token: 7}
	}
	const uid = "2c48913c-b29f-11e7-9350-020968147796"
	entries := []lockmgr.Entry{
		entry(lockmgr.Holder{Pod: uid, PodName: "team-a/web-0", Container: "main", PID: 12, Comm: "cp"}),
		entry(lockmgr.Holder{Pod: uid, PID: 13, Comm: "\x1b[2J"}),
		entry(lockmgr.Holder{PID: 14, Comm: "sh"}),
	}
	list := func(output string) string {
		o := listOptions{output: choiceFlag[string]{output, nil}}
		var b bytes.Buffer
		if err := o.print(&b, entries, time.Now()); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	var lines [][]string
	for line := range strings.Lines(list("table")) {
		lines = append(lines, strings.Fields(line))
	}
	for i, want := range []string{
		"PATH MODE STATE LOCK NODE POD CONTAINER PID COMMAND",
		"f w held 0b5d5c4e n1 team-a/web-0 main 12 cp",
		"f w held 0b5d5c4e n1 " + uid + ` - 13 "\x1b[2J"`,
		"f w held 0b5d5c4e n1 - - 14 sh",
	} {
		if got := strings.Join(lines[i][:9], " "); got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
	var got []map[string]any
	if err := json.Unmarshal([]byte(list("json")), &got); err != nil {
		t.Fatal(err)
	}
	if l := got[0]; l["pod"] != uid || l["pod_name"] != "team-a/web-0" || l["container"] != "main" {
		t.Errorf("as JSON: %v", l)
	}
}
