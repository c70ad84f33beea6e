package command

import (
	"slices"
	"testing"
	"time"
)

func parsed(t *testing.T, args ...string) *Flags {
	t.Helper()
	f := NewFlags("bench/test", []string{"ext4", "lockfs", "other"}, []string{"ext4", "lockfs"}, time.Second)
	if err := f.Parse(args, map[string]string{"rounds": "1", "time": "10ms"}); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestShort(t *testing.T) {
	for _, test := range []struct {
		args   []string
		rounds int
		each   time.Duration
	}{
		{nil, 9, time.Second},
		{[]string{"-short"}, 1, 10 * time.Millisecond},
		{[]string{"-short", "-time", "5s"}, 1, 5 * time.Second},
		{[]string{"-rounds", "3", "-short"}, 3, 10 * time.Millisecond},
	} {
		if f := parsed(t, test.args...); f.Rounds != test.rounds || f.Each != test.each {
			t.Errorf("%v: %d rounds of %v, want %d of %v", test.args, f.Rounds, f.Each, test.rounds, test.each)
		}
	}
}

func TestSelection(t *testing.T) {
	rows := []string{"read", "write", "write 4k"}
	for _, test := range []struct {
		args          []string
		rows, systems []string // none: refused
	}{
		{nil, rows, []string{"ext4", "lockfs"}},
		{[]string{"-rows", "^write", "-systems", "other"}, rows[1:], []string{"other"}},
		{[]string{"-rows", "4k$", "-systems", "other,ext4"}, rows[2:], []string{"other", "ext4"}},
		{[]string{"-rows", "mmap", "-systems", "nfs"}, nil, nil},
		{[]string{"-rows", "(", "-systems", ""}, nil, nil},
	} {
		f := parsed(t, test.args...)
		got, err := Rows(f, rows, func(r string) string { return r })
		if !slices.Equal(got, test.rows) || (err == nil) != (test.rows != nil) {
			t.Errorf("%v: rows %v, %v, want %v", test.args, got, err, test.rows)
		}
		systems, err := f.Systems()
		if !slices.Equal(systems, test.systems) || (err == nil) != (test.systems != nil) {
			t.Errorf("%v: systems %v, %v, want %v", test.args, systems, err, test.systems)
		}
	}
	if len(rows) != 3 || rows[0] != "read" {
		t.Errorf("the rows are %v now", rows)
	}
}

func TestRefusedFlags(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"create"}} {
		if err := NewFlags("bench/test", nil, nil, 0).Parse(args, nil); err == nil {
			t.Errorf("%v is not refused", args)
		}
	}
}
