package report

import (
	"fmt"
	"math"
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
