package procid

import "testing"

// Cgroups as they were seen on clusters, one of each layout: v1 and v2, both
// drivers of the kubelet, the runtimes, nested nodes, and a look from another
// cgroup namespace.
func TestCgroupLayouts(t *testing.T) {
	tests := map[string]struct{ cgroup, pod, container string }{
		"v1, cgroupfs, containerd (GKE)": {
			"11:devices:/kubepods/besteffort/pod74c13223-5a00-11e9-b385-42010a80018d/34dc0b5e626f2c5c4c5170e34b10e7654ce36f0fcd532739f4445baabea03376",
			"74c13223-5a00-11e9-b385-42010a80018d", "34dc0b5e626f2c5c4c5170e34b10e7654ce36f0fcd532739f4445baabea03376",
		},
		"v1, cgroupfs, burstable": {
			"11:blkio:/kubepods/burstable/podf6adb0af-0855-4bab-b25b-c853f18d0ce2/35b97177dada20362ab90d90ac63cd54e8a41cf87bea34f270631b6da17f4a93",
			"f6adb0af-0855-4bab-b25b-c853f18d0ce2", "35b97177dada20362ab90d90ac63cd54e8a41cf87bea34f270631b6da17f4a93",
		},
		"v1, systemd, docker": {
			"4:perf_event:/kubepods.slice/kubepods-pod7bb341b7_92a7_4e41_919c_97b7e6fc68b7.slice/docker-48dcb0f76e8de43b8cd330b5e744aa92b54b47074712bd89cf382727b7999f54.scope",
			"7bb341b7-92a7-4e41-919c-97b7e6fc68b7", "48dcb0f76e8de43b8cd330b5e744aa92b54b47074712bd89cf382727b7999f54",
		},
		"v1, systemd, CRI-O": {
			"1:name=systemd:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podd0511cd2_29d2_4215_be0f_f77bc0609d99.slice/crio-f93ee491b8ed2680d5a909eb098b14a9430173b57ca1c4efedd8768566d67e8e.scope",
			"d0511cd2-29d2-4215-be0f-f77bc0609d99", "f93ee491b8ed2680d5a909eb098b14a9430173b57ca1c4efedd8768566d67e8e",
		},
		"v1, a scope without its runtime's name": {
			"11:devices:/kubepods.slice/kubepods-pod97f1ae73_7ad9_11ec_b4a7_9a35488b4fab.slice/3291bfddf3f3f8d87cb0cd1245fe9c45b2e1e5a9b6fe3de1bddf041aedaecbab",
			"97f1ae73-7ad9-11ec-b4a7-9a35488b4fab", "3291bfddf3f3f8d87cb0cd1245fe9c45b2e1e5a9b6fe3de1bddf041aedaecbab",
		},
		"v1, kubelet with systemd, containerd with cgroupfs": {
			"13:memory:/system.slice/containerd.service/kubepods-besteffort-pod0043435f_1854_4327_b76b_730f681a781d.slice:cri-containerd:01fd96f7ad292b02a8317cde4ecb8c7ef3cc06ffdd113f13410e0837eb2b2a20",
			"0043435f-1854-4327-b76b-730f681a781d", "01fd96f7ad292b02a8317cde4ecb8c7ef3cc06ffdd113f13410e0837eb2b2a20",
		},
		"v1, the same in k3s": {
			"4:pids:/kubepods-burstable-pod57e67067_89e4_4001_bdd4_8632d39ea02b.slice:cri-containerd:6d393320601b821561e43bd46f658284cb172cf297ecc3d3665be657870d32e2",
			"57e67067-89e4-4001-bdd4-8632d39ea02b", "6d393320601b821561e43bd46f658284cb172cf297ecc3d3665be657870d32e2",
		},
		"v1, kind": {
			"9:cpu,cpuacct:/docker/744ba5524431986481406cfd13382cbeb7e59a4739dec5ff8b458bc821969662/kubelet/kubepods/besteffort/pod3716cd27-4591-40fc-9dae-3851142b1d51/e06769b086acea415152f733574033db4dc5e81c9a8f6563648fd5f3b60227af",
			"3716cd27-4591-40fc-9dae-3851142b1d51", "e06769b086acea415152f733574033db4dc5e81c9a8f6563648fd5f3b60227af",
		},
		"v2, systemd, containerd, static pod": {
			"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7260904bbd08e72e4dff95d9fccd2ee8.slice/cri-containerd-40c03570b6f4c30bc8d69923d37ee698f5cfcced92c7b7df1c47f6f7887378a9.scope",
			"7260904bbd08e72e4dff95d9fccd2ee8", "40c03570b6f4c30bc8d69923d37ee698f5cfcced92c7b7df1c47f6f7887378a9",
		},
		"v2, systemd, CRI-O": {
			"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod2c9f8a79_5391_454b_88cb_86190881cb96.slice/crio-a09343ca97901516c25036e2b954421254f8c68b384b536064e8999f0c4ed18d.scope/container",
			"2c9f8a79-5391-454b-88cb-86190881cb96", "a09343ca97901516c25036e2b954421254f8c68b384b536064e8999f0c4ed18d",
		},
		"v2, systemd, what CRI-O watches a container with": {
			"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podb13213a6_d47e_4bd1_bc00_f175d1ad3b6e.slice/crio-conmon-eb5a56051cf7c5e9e588d0dca94d6673d67d43604686e1485984732b18701057.scope",
			"b13213a6-d47e-4bd1-bc00-f175d1ad3b6e", "",
		},
		"v2, systemd, guaranteed": {
			"0::/kubepods.slice/kubepods-podea2e69b4_0bd4_48f0_b75f_cc7c79111027.slice/cri-containerd-7ee34913fbefa6a0dbbdf1bbc302cc29a1bde3b83b8b9f2252a4d4360c373848.scope",
			"ea2e69b4-0bd4-48f0-b75f-cc7c79111027", "7ee34913fbefa6a0dbbdf1bbc302cc29a1bde3b83b8b9f2252a4d4360c373848",
		},
		"v2, systemd, a service in the container": {
			"0::/kubepods.slice/kubepods-podea2e69b4_0bd4_48f0_b75f_cc7c79111027.slice/cri-containerd-7ee34913fbefa6a0dbbdf1bbc302cc29a1bde3b83b8b9f2252a4d4360c373848.scope/system.slice/nginx.service",
			"ea2e69b4-0bd4-48f0-b75f-cc7c79111027", "7ee34913fbefa6a0dbbdf1bbc302cc29a1bde3b83b8b9f2252a4d4360c373848",
		},
		"v2, docker in the container": {
			"0::/kubepods/pod7c5c5d8e-5a1a-4b3c-8d1e-9f8e7c6d5a4b/7ee34913fbefa6a0dbbdf1bbc302cc29a1bde3b83b8b9f2252a4d4360c373848/docker/2cc65c162ca1388b6b8d5ccfb701d22fc96675ccf8b2f1590c490c2c4039547f",
			"7c5c5d8e-5a1a-4b3c-8d1e-9f8e7c6d5a4b", "7ee34913fbefa6a0dbbdf1bbc302cc29a1bde3b83b8b9f2252a4d4360c373848",
		},
		"v2, cgroupfs, kind, static pod": {
			"0::/kubelet/kubepods/burstable/pod46dac9a538838115821dfd9559149484/972055640bc63f5c4d894145950cf92cdfb524dcf049fbe6aee47bf23facf297",
			"46dac9a538838115821dfd9559149484", "972055640bc63f5c4d894145950cf92cdfb524dcf049fbe6aee47bf23facf297",
		},
		"v2, systemd, kind, static pod": {
			"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-podd8992f589d8dd12c4342376ccb459375.slice/cri-containerd-ecbcea5cd29afb25ba519715e827cda9e66cd0a914207f49ce0a292a6aa84d66.scope",
			"d8992f589d8dd12c4342376ccb459375", "ecbcea5cd29afb25ba519715e827cda9e66cd0a914207f49ce0a292a6aa84d66",
		},
		"v2, systemd, kind, guaranteed": {
			"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod20da609e_6973_4463_a1f9_2db9bcc5becc.slice/cri-containerd-10ec3c89629f71226b227e6510b2d465168b24005bbdcc5d7940517080830635.scope",
			"20da609e-6973-4463-a1f9-2db9bcc5becc", "10ec3c89629f71226b227e6510b2d465168b24005bbdcc5d7940517080830635",
		},
		"v2, systemd, kind, seen from its host": {
			"0::/system.slice/docker-fd9d0ea06257a9780827cbc7fd92e3812a54fca26d63e191b73610d5d48b9cbd.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-podeab5a334_93fe_48a8_b139_9e8079c1f163.slice/cri-containerd-99f3a16ea25b7724cb56a4f0c0df1113ad9474fbf5545bead97fd5c7f61c13f4.scope",
			"eab5a334-93fe-48a8-b139-9e8079c1f163", "99f3a16ea25b7724cb56a4f0c0df1113ad9474fbf5545bead97fd5c7f61c13f4",
		},

		// Seen from a container with a cgroup namespace of its own.
		"v2, cri-dockerd, from a pod of the same class": {
			"0::/../../kubepods-besteffort-podfd698699_eabf_4c23_92ef_cf0bbdb78261.slice/docker-2cc65c162ca1388b6b8d5ccfb701d22fc96675ccf8b2f1590c490c2c4039547f.scope",
			"fd698699-eabf-4c23-92ef-cf0bbdb78261", "2cc65c162ca1388b6b8d5ccfb701d22fc96675ccf8b2f1590c490c2c4039547f",
		},
		"v2, containerd, from a pod of another class": {
			"0::/../../../kubepods-besteffort.slice/kubepods-besteffort-podfd698699_eabf_4c23_92ef_cf0bbdb78261.slice/cri-containerd-2cc65c162ca1388b6b8d5ccfb701d22fc96675ccf8b2f1590c490c2c4039547f.scope",
			"fd698699-eabf-4c23-92ef-cf0bbdb78261", "2cc65c162ca1388b6b8d5ccfb701d22fc96675ccf8b2f1590c490c2c4039547f",
		},
		"v2, minikube, static pod, from a pod of the same class": {
			"0::/../../pode039200acb850c82bb901653cc38ff6e/58452031ab6dcaa4fe3ff91f8a46fd41a4a2405586f3cf3d5cb9c93b5bcf62cc",
			"e039200acb850c82bb901653cc38ff6e", "58452031ab6dcaa4fe3ff91f8a46fd41a4a2405586f3cf3d5cb9c93b5bcf62cc",
		},
		"v2, cgroupfs, from a pod of another class": {
			"0::/../../../burstable/pod2c48913c-b29f-11e7-9350-020968147796/9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961",
			"2c48913c-b29f-11e7-9350-020968147796", "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961",
		},
		// The pod's name is above what the namespace shows: see the package's documentation.
		"v2, CRI-O, another container of the daemon's own pod": {
			"0::/../crio-45490e76e0878aaa4d9808f7d2eefba37f093c3efbba9838b6d8ab804d9bd814.scope", "", "",
		},

		"v2, CRI-O, outside of the pod's slice": {"0::/system.slice/crio-conmon-5819a498721cf8bb7e334809c9e48aa310bfc98801eb8017034ad17fb0749920.scope", "", ""},
		"v2, in a virtual machine":              {"0::/k8s.io/3d8f6f63ac932eaea905aceb8f4549b019a92f4917365b6eb0011af11d809476", "", ""},
		"v2, the runtime":                       {"0::/docker/744ba5524431986481406cfd13382cbeb7e59a4739dec5ff8b458bc821969662/system.slice/containerd.service", "", ""},
		"v1, ECS":                               {"11:hugetlb:/ecs/55091c13-b8cf-4801-b527-f4601742204d/432624d2150b349fe35ba397284dea788c2bf66b885d14dfc1569b01890ca7da", "", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod, container := podOf([]byte(test.cgroup + "\n"))
			if pod != test.pod || container != test.container {
				t.Errorf("podOf(%q) = %q, %q, want %q, %q", test.cgroup, pod, container, test.pod, test.container)
			}
		})
	}
}
