package procid

import (
	"os"
	"path/filepath"
	"testing"
)

func TestContainerName(t *testing.T) {
	const rest = " rw,relatime shared:7 - ext4 /dev/vda1 rw\n"
	const others = "512 511 0:70 / / ro,relatime - overlay overlay rw\n" +
		"513 512 0:71 / /proc rw - proc proc rw\n" +
		"514 512 8:1 /var/lib/kubelet/pods/" + uid + "/volumes/kubernetes.io~projected/token /var/run/secrets ro" + rest +
		"515 512 8:1 /var/lib/kubelet/pods/" + uid + "/etc-hosts /etc/hosts rw" + rest
	for name, test := range map[string]struct{ mountinfo, want string }{
		"a container":               {others + "516 512 8:1 /var/lib/kubelet/pods/" + uid + "/containers/main/07ab0d52 /dev/termination-log rw" + rest, "main"},
		"its kubelet has a disk":    {others + "516 512 0:59 /pods/" + uid + "/containers/main/07ab0d52 /dev/termination-log rw" + rest, "main"},
		"a static pod":              {"516 512 0:59 /kubelet/pods/" + static + "/containers/etcd/07ab0d52 /last\\040words rw" + rest, "etcd"},
		"none":                      {others, ""},
		"a directory of that name":  {"516 512 0:59 /srv/pods/mine/containers/main/07ab0d52 /dev/termination-log rw" + rest, ""},
		"a volume that is named so": {"516 512 8:1 /var/lib/kubelet/pods/" + uid + "/containers/main /x rw" + rest, ""},
		"nonsense":                  {"\n1 2\n/ / / / /\n", ""},
	} {
		root := t.TempDir()
		if err := os.Mkdir(filepath.Join(root, "7"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "7", "mountinfo"), []byte(test.mountinfo), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := (Proc{Root: root}).ContainerName(7); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	if got := (Proc{}).ContainerName(-1); got != "" {
		t.Errorf("of no process: %q", got)
	}
}
