package serve

import (
	"bytes"
	"encoding/gob"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/lockfs/lockfs/internal/handover"
)

var update = flag.Bool("update", false, "record the present format of the state")

// The state that a released daemon hands on is understood: a state of each format, with a value in
// each field, is in testdata. Who changes what a State has raises handover.Format, and records the
// new one with -update.
func TestFormat(t *testing.T) {
	n := 0
	want := &snapshot{}
	fill(reflect.ValueOf(want).Elem(), &n)
	file := filepath.Join("testdata", fmt.Sprintf("handover-%d.gob", handover.Format))
	if *update {
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(want); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	recorded, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := &snapshot{}
	if err := gob.NewDecoder(bytes.NewReader(recorded)).Decode(got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the state has changed, and the format has not: %+v, want %+v", got, want)
	}
}

// fill gives each field a value of its own.
func fill(v reflect.Value, n *int) {
	*n++
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(int64(*n), 0).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), n)
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n)
		fill(value, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(fmt.Sprint("s", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n % 100))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		v.SetUint(uint64(*n%100 + 1))
	}
}

// A state that was cut anywhere is refused, and no half of it is taken.
func TestCutState(t *testing.T) {
	recorded, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("handover-%d.gob", handover.Format)))
	if err != nil {
		t.Fatal(err)
	}
	for n := range recorded {
		if err := gob.NewDecoder(bytes.NewReader(recorded[:n])).Decode(&snapshot{}); err == nil {
			t.Fatalf("%d bytes of %d are understood", n, len(recorded))
		}
	}
}
