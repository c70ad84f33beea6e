package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// volumeEnv names directories, separated by commas, where clients of one network volume are
// mounted. The tests' mounts are over the next of them in turn.
const volumeEnv = "LOCKFS_TEST_VOLUME"

// NetworkClients are those directories.
func NetworkClients() []string {
	if os.Getenv(volumeEnv) == "" {
		return nil
	}
	return strings.Split(os.Getenv(volumeEnv), ",")
}

// onVolume has the mounts be over these clients of a volume.
func (v *Volume) onVolume(paths []string) {
	v.T.Helper()
	dir, err := os.MkdirTemp(paths[0], "lfs")
	if err != nil {
		v.T.Fatal(err)
	}
	v.T.Cleanup(func() { os.RemoveAll(dir) })
	v.Source, v.by = filepath.Join(dir, "source"), make(map[string]string)
	for _, p := range paths {
		v.Clients = append(v.Clients, filepath.Join(p, filepath.Base(dir), "source"))
	}
}

// Client is the directory that a mount is over.
func (v *Volume) Client(mount string) string {
	v.T.Helper()
	if v.Clients == nil {
		return v.Caching(mount)
	}
	if v.by[mount] == "" {
		v.by[mount] = v.Clients[len(v.by)%len(v.Clients)]
	}
	return v.by[mount]
}

// labEnv names the socket of a lab that makes faults: see integration/volumes.
const labEnv = "LOCKFS_TEST_LAB"

// Fault has the lab make a fault, or answer. It skips the test without a lab, or such a fault.
func Fault(t *testing.T, name string) (answer string) {
	t.Helper()
	if os.Getenv(labEnv) == "" {
		t.Skip("no $" + labEnv)
	}
	conn, err := net.Dial("unix", os.Getenv(labEnv))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintln(conn, name)
	b, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	word, answer, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	switch word {
	case "ok":
		return answer
	case "none":
		t.Skipf("the lab cannot %s", name)
	}
	t.Fatalf("%s: %s", name, b)
	return ""
}

// traitsEnv has what the tests have to know of a volume, as JSON.
const traitsEnv = "LOCKFS_TEST_VOLUME_TRAITS"

// traits are those of the volume, as integration/volumes knows them.
var traits = func() (is struct {
	Keeps    time.Duration // how long a killed client's files are kept from others
	NoWinner []string      // ways to claim a job that now and then nobody wins
}) {
	_ = json.Unmarshal([]byte(os.Getenv(traitsEnv)), &is)
	return is
}()

// MayHaveNoWinner reports whether the volume lets, now and then, nobody win a job claimed in this
// way.
func MayHaveNoWinner(how string) bool { return slices.Contains(traits.NoWinner, how) }
