package integration

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/lockfs/lockfs/internal/kubetest"
)

// backendEnv, set to a namespace, keeps the locks of every test's volumes in its
// Leases, in the API server that $KUBECONFIG names.
const backendEnv = "LOCKFS_TEST_LEASES"

// volumesInKubernetes makes the names of volumes in one API server differ.
var volumesInKubernetes atomic.Int64

// TestInKubernetes runs tests of mounts and of commands with the locks in Leases.
func TestInKubernetes(t *testing.T) {
	server, err := kubetest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	kubeconfig, err := server.Kubeconfig()
	if err != nil {
		t.Fatal(err)
	}
	space, err := server.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.DropNamespace(space) })
	t.Setenv("KUBECONFIG", kubeconfig)
	t.Setenv(backendEnv, space)
	kubernetes = server
	t.Cleanup(func() { kubernetes = nil })
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"ManyWritersOnTwoMounts", TestManyWritersOnTwoMounts},
		{"ContendedOpen", TestContendedOpen},
		{"HolderIsUndisturbed", TestHolderIsUndisturbed},
		{"InterruptedOpenLeavesNothing", TestInterruptedOpenLeavesNothing},
		{"LinkedDuringWait", TestLinkedDuringWait},
		{"HolderOpensTheNameWaitedFor", TestHolderOpensTheNameWaitedFor},
		{"OpenedWhileItsNamesChange", TestOpenedWhileItsNamesChange},
		{"LockFollowsRename", TestLockFollowsRename},
		{"ParentRenamedOnAnotherMount", TestParentRenamedOnAnotherMount},
		{"ParentReplacedDuringWait", TestParentReplacedDuringWait},
		{"HolderReplacesItsFile", TestHolderReplacesItsFile},
		{"ReadLocks", TestReadLocks},
		{"ReadLocksOfOneProgram", TestReadLocksOfOneProgram},
		{"LockAttributes", TestLockAttributes},
		{"KilledMountHandsOver", TestKilledMountHandsOver},
		{"ThawedDaemonDoesNotWrite", TestThawedDaemonDoesNotWrite},
		{"TerminatedMountReleases", TestTerminatedMountReleases},
		{"Successor", TestSuccessor},
		{"BrokenWriterIsFenced", TestBrokenWriterIsFenced},
		{"Exec", TestExec},
		{"ExecWaits", TestExecWaits},
		{"VolumeMismatch", TestVolumeMismatch},
		{"PolicyMismatch", TestPolicyMismatch},
		{"MoveBetweenKinds", TestMoveBetweenKinds},
		{"History", TestHistory},
		{"KilledUnderLoad", TestKilledUnderLoad},
		{"ThawedUnderLoad", TestThawedUnderLoad},
		{"ShortOutages", TestShortOutages},
		{"ServiceStops", TestMajorityLost},
		{"CutOffForShort", TestCutOffForShort},
		{"CutOffForLong", TestCutOffForLong},
		{"ServersOfOneStore", TestServersOfOneStore},
		{"FaultsAtRandom", TestFaultsAtRandom},
		{"RestoreUnderMounts", TestRestoreUnderMounts},
	} {
		t.Run(test.name, test.run)
	}
}

// inKubernetes keeps a volume's locks in a namespace of the API server's.
func (v *volume) inKubernetes(space string) {
	v.env = append(v.env, "LOCKFS_BACKEND=kubernetes", "LOCKFS_LEASE_NAMESPACE="+space,
		"LOCKFS_KUBE_QPS=1000", "LOCKFS_KUBE_BURST=1000", // the tests are in a hurry
		fmt.Sprintf("LOCKFS_NAME=volume-%d", volumesInKubernetes.Add(1)))
}
