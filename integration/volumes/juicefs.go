package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	juiceVersion = "v1.4.1"
	// juiceTags leave out what the lab does not use: it builds in half the time.
	juiceTags = "nogateway,nowebdav,nocos,nobos,nohdfs,noibmcos,noobs,nooss,noqingstor,nosftp,noswift,noazure,nogs,noufile,nob2,nonfs," +
		"nodragonfly,nosqlite,nomysql,nopg,notikv,nobadger,noetcd,nocifs,nostorj,noqiniu,nos3,notos,noks3"
)

// juiceProgram is where JuiceFS is kept once it is built.
func juiceProgram() (string, error) {
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "lockfs-volumes", "juicefs-"+juiceVersion), err
}

// buildJuice builds JuiceFS, once: some 200 s.
func buildJuice() error {
	program, err := juiceProgram()
	if err != nil {
		return err
	}
	if _, err := os.Stat(program); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		return err
	}
	// It replaces modules by others, and so cannot be installed as a dependency.
	download := exec.Command("go", "mod", "download", "-json", "github.com/juicedata/juicefs@"+juiceVersion)
	download.Dir = os.TempDir()
	out, err := download.Output()
	if err != nil {
		return fmt.Errorf("go mod download: %w: %s", err, out)
	}
	var module struct{ Dir string }
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(&module); err != nil {
		return err
	}
	fmt.Println("volumes: building JuiceFS", juiceVersion)
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", juiceTags, "-o", program+".new", ".")
	cmd.Dir, cmd.Env = module.Dir, append(os.Environ(), "GOFLAGS=-mod=mod", "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build JuiceFS: %w: %s", err, out)
	}
	return os.Rename(program+".new", program)
}

// juicefs is a volume of JuiceFS with its metadata in redis, its objects in a directory,
// and two clients.
func juicefs(l *lab) (clients []string, err error) {
	program, err := juiceProgram()
	if err != nil {
		return nil, err
	}
	redis, err := l.start("redis", "redis-server", "--bind", address, "--protected-mode", "no", "--save", "", "--dir", l.mkdir("redis"))
	if err != nil {
		return nil, err
	}
	url := "redis://" + address + ":6379/1"
	if err := l.until("redis answers", func() bool { return l.run("redis-cli", "-h", address, "ping") == nil }, redis); err != nil {
		return nil, err
	}
	if err := l.run(program, "format", "--storage", "file", "--bucket", l.mkdir("objects")+"/", url, "volume"); err != nil {
		return nil, err
	}
	for _, name := range []string{"a", "b"} {
		dir := l.mkdir("client-" + name)
		args := []string{program, "mount", "--no-usage-report", "--cache-dir", l.mkdir("cache-" + name), "--log", l.path("client-" + name + ".txt"), "-o", "allow_other"}
		if l.recommended() {
			args = append(args, "--entry-cache", "0", "--dir-entry-cache", "0", "--attr-cache", "0")
		}
		client, err := l.start("client-"+name, append(args, url, dir)...)
		if err != nil {
			return nil, err
		}
		if err := l.until("the client is mounted", func() bool { return isMounted(dir) }, client); err != nil {
			return nil, err
		}
		l.client(len(clients), client, dir)
		clients = append(clients, dir)
	}
	l.servers(redis)
	return clients, nil
}

// juiceSyncs counts what the clients were asked, and the objects that they stored.
func juiceSyncs(l *lab) (map[string]int, error) {
	counts := map[string]int{"sync": 0, "PUT": 0}
	names := map[string]string{
		"juicefs_fuse_ops_total_fsync":                                 "sync",
		"juicefs_object_request_durations_histogram_seconds_PUT_total": "PUT",
	}
	for _, client := range []string{"client-a", "client-b"} {
		stats, err := os.ReadFile(l.path(client + "/.stats"))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(stats)) {
			f := strings.Fields(line)
			if len(f) != 2 || names[f[0]] == "" {
				continue
			}
			n, err := strconv.Atoi(f[1])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", line, err)
			}
			counts[names[f[0]]] += n
		}
	}
	return counts, nil
}
