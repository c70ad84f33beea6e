package report

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestRatio(t *testing.T) {
	of := map[string][]float64{"lockfs": {2, 40, 6}, "ext4": {1, 10, 2}, "bindfs": {4, 1}}
	for over, want := range map[string]float64{"ext4": 3, "bindfs": 20.25, "loopback": math.NaN()} {
		if got := Ratio(of["lockfs"], of[over]); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("over %s: %v, want %v", over, got, want)
		}
	}
}

func TestTarget(t *testing.T) {
	if !Least("x", 2).Met(2) || Least("x", 2).Met(1.9) || Least("x", 2).Met(math.NaN()) ||
		!Most("x", 2).Met(2) || Most("x", 2).Met(2.1) || Most("x", 2).Met(math.NaN()) {
		t.Error("targets are judged wrongly")
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	Table(&out, 0, "lockfs", []string{"ext4", "lockfs", "bindfs"}, []Line{
		{Name: "read", Unit: "MB/s", Of: map[string][]float64{"ext4": {100, 300, 200}, "lockfs": {50, 300, 50}}},
		{Name: "stat", Unit: "s", Of: map[string][]float64{"ext4": {2}, "lockfs": {3}, "bindfs": {12}}},
	})
	want := `
row   unit  ext4   lockfs  bindfs  /ext4  /bindfs  
read  MB/s  200    50.0    -       0.50   -        
stat  s     2.000  3.000   12.0    1.50   0.25     
`
	if out.String() != want {
		t.Errorf("got %s\nwant %s", &out, want)
	}
}
