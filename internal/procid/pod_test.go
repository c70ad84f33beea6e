package procid

import (
	"strings"
	"testing"
)

const (
	uid      = "2c48913c-b29f-11e7-9350-020968147796"
	uidSlice = "2c48913c_b29f_11e7_9350_020968147796"
	inner    = "6a1b0f5e-7f0c-4f35-9e62-0d0b1f9b6a11"
	static   = "5a7e3b1c9d2f4e6a8b0c1d2e3f4a5b6c"
	cid      = "9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c"
)

func TestPodOf(t *testing.T) {
	tests := map[string]struct {
		cgroup string
		want   string
	}{
		"v2, cgroupfs, burstable":      {"0::/kubepods/burstable/pod" + uid + "/" + cid, uid},
		"v2, cgroupfs, best effort":    {"0::/kubepods/besteffort/pod" + uid + "/" + cid, uid},
		"v2, cgroupfs, guaranteed":     {"0::/kubepods/pod" + uid + "/" + cid, uid},
		"v2, cgroupfs, static pod":     {"0::/kubepods/burstable/pod" + static + "/" + cid, static},
		"v2, cgroupfs, no container":   {"0::/kubepods/burstable/pod" + uid, uid},
		"v2, container's own cgroup":   {"0::/kubepods/burstable/pod" + uid + "/" + cid + "/init.scope", uid},
		"v2, cgroup root":              {"0::/custom/root/kubepods/burstable/pod" + uid + "/" + cid, uid},
		"v2, removed":                  {"0::/kubepods/burstable/pod" + uid + "/" + cid + " (deleted)", uid},
		"v2, removed with its pod":     {"0::/kubepods/burstable/pod" + uid + " (deleted)", uid},
		"v2, systemd, containerd":      {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidSlice + ".slice/cri-containerd-" + cid + ".scope", uid},
		"v2, systemd, cri-o":           {"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uidSlice + ".slice/crio-" + cid + ".scope", uid},
		"v2, systemd, cri-o container": {"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uidSlice + ".slice/crio-" + cid + ".scope/container", uid},
		"v2, systemd, docker":          {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidSlice + ".slice/docker-" + cid + ".scope", uid},
		"v2, systemd, guaranteed":      {"0::/kubepods.slice/kubepods-pod" + uidSlice + ".slice/cri-containerd-" + cid + ".scope", uid},
		"v2, systemd, static pod":      {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + static + ".slice/cri-containerd-" + cid + ".scope", static},
		"v2, kind":                     {"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod" + uidSlice + ".slice/cri-containerd-" + cid + ".scope", uid},
		"v2, kind seen from the host":  {"0::/system.slice/docker-" + cid + ".scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + uidSlice + ".slice/cri-containerd-" + cid + ".scope", uid},
		"v2, systemd, cgroupfs name":   {"0::/system.slice/containerd.service/kubepods-burstable-pod" + uidSlice + ".slice:cri-containerd:" + cid, uid},
		"v2, pod in a pod":             {"0::/kubepods/burstable/pod" + uid + "/" + cid + "/kubelet/kubepods/burstable/pod" + inner + "/" + cid, uid + "/" + inner},
		"v2, user in a pod":            {"0::/kubepods/burstable/pod" + uid + "/" + cid + "/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + inner, uid},
		"v2, named twice":              {"0::/kubepods-pod" + uidSlice + ".slice/kubepods-pod" + uidSlice + ".slice:cri-containerd:" + cid, uid},
		"v2, other namespace":          {"0::/../../pod" + uid + "/" + cid, uid},
		"v2, other namespace, systemd": {"0::/../../kubepods-pod" + uidSlice + ".slice/cri-containerd-" + cid + ".scope", uid},
		"v1, cgroupfs": {"12:pids:/kubepods/burstable/pod" + uid + "/" + cid + "\n" +
			"11:memory:/kubepods/burstable/pod" + uid + "/" + cid + "\n" +
			"1:name=systemd:/kubepods/burstable/pod" + uid + "/" + cid, uid},
		"v1, systemd": {"4:cpu,cpuacct:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidSlice + ".slice/docker-" + cid + ".scope", uid},
		"v1, some controllers at the root": {"3:rdma:/\n2:cpuset:/kubepods/besteffort/pod" + uid + "/" + cid + "\n" +
			"0::/system.slice/containerd.service", uid},
		"v1, k3s":      {"9:devices:/k3s/kubepods/besteffort/pod" + uid + "/" + cid, uid},
		"v1, minikube": {"7:freezer:/docker/" + cid + "/kubepods/burstable/pod" + uid + "/" + cid, uid},

		"empty":                     {"", ""},
		"root":                      {"0::/", ""},
		"login":                     {"0::/user.slice/user-1000.slice/session-2.scope", ""},
		"service":                   {"0::/system.slice/kubelet.service", ""},
		"kubelet's slice":           {"0::/kubepods.slice/kubepods-burstable.slice", ""},
		"docker":                    {"0::/docker/" + cid, ""},
		"docker, systemd":           {"0::/system.slice/docker-" + cid + ".scope", ""},
		"podman":                    {"0::/machine.slice/libpod-" + cid + ".scope/container", ""},
		"podman pod":                {"0::/machine.slice/machine-libpod_pod_" + cid + ".slice/libpod-" + cid + ".scope", ""},
		"ecs":                       {"4:memory:/ecs/" + uid + "/" + cid, ""},
		"lxc":                       {"0::/lxc.payload.pod" + uid, ""},
		"pod of nobody's":           {"0::/user.slice/pod" + uid, ""},
		"user's own kubepods":       {"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + uid + "/" + cid, ""},
		"user's own, systemd":       {"0::/user.slice/user-1000.slice/user@1000.service/app.slice/kubepods-pod" + uidSlice + ".slice/cri-containerd-" + cid + ".scope", ""},
		"user's, in a namespace":    {"0::/user@1000.service/kubepods.slice/kubepods-pod" + uidSlice + ".slice", ""},
		"user's, other namespace":   {"0::/../../user.slice/user-1000.slice/user@1000.service/pod" + uid, ""},
		"user's in kind's node":     {"0::/system.slice/docker-" + cid + ".scope/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + uid, ""},
		"slice of nobody's":         {"0::/user.slice/user-pod" + uidSlice + ".slice", ""},
		"no UID":                    {"0::/kubepods/burstable/pod/" + cid, ""},
		"UID too long":              {"0::/kubepods/burstable/pod" + uid + "0/" + cid, ""},
		"UID of other letters":      {"0::/kubepods/burstable/podgggggggggggggggggggggggggggggggg/" + cid, ""},
		"dashes in the wrong place": {"0::/kubepods/burstable/pod" + strings.Repeat("-", 36), ""},
		"no dashes":                 {"0::/kubepods/burstable/pod" + strings.Repeat("0", 36), ""},
		"slice without a UID":       {"0::/kubepods.slice/kubepods-podagent.slice", ""},
		"scope with a pod's name":   {"0::/kubepods.slice/kubepods-pod" + uidSlice + ".scope", ""},
		"controllers look like it":  {"1:name=/kubepods/pod" + uid, ""},
		"nonsense":                  {"::::\n\n:", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for _, end := range []string{"", "\n"} {
				got, container := podOf([]byte(test.cgroup + end))
				if got != test.want {
					t.Errorf("podOf(%q) = %q, want %q", test.cgroup+end, got, test.want)
				}
				if want := test.want != "" && strings.Contains(test.cgroup, cid); want != (container == cid) || !want && container != "" {
					t.Errorf("podOf(%q) is of container %q, want one: %v", test.cgroup+end, container, want)
				}
			}
		})
	}
}

func FuzzPodOf(f *testing.F) {
	f.Add([]byte("0::/kubepods/burstable/pod" + uid + "/" + cid + "\n"))
	f.Add([]byte("0::/../kubepods-pod" + uidSlice + ".slice:cri-containerd:" + cid))
	f.Fuzz(func(t *testing.T, cgroup []byte) {
		pod, container := podOf(cgroup)
		if container != "" && (pod == "" || len(container) != 64) {
			t.Errorf("podOf(%q) = %q, %q", cgroup, pod, container)
		}
		for part := range strings.SplitSeq(pod, "/") {
			if pod != "" && !isUID([]byte(part)) {
				t.Errorf("podOf(%q) = %q", cgroup, pod)
			}
		}
	})
}
