package integration

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/lockfs/lockfs/internal/kubetest"
	"github.com/lockfs/lockfs/internal/longtest"
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
	for _, test := range inKubernetes {
		t.Run(test.name, test.run)
	}
	for _, test := range inKubernetesForLong {
		t.Run(test.name, func(t *testing.T) {
			longtest.Only(t)
			test.run(t)
		})
	}
}

type namedTest struct {
	name string
	run  func(*testing.T)
}

// inKubernetes are tests of what differs with Leases: how a session ends, how it is
// proved dead, what becomes of the service, and a history.
var inKubernetes = []namedTest{
	{"LockFollowsRename", TestLockFollowsRename},
	{"ReadLocks", TestReadLocks},
	{"KilledMountHandsOver", TestKilledMountHandsOver},
	{"ThawedDaemonDoesNotWrite", TestThawedDaemonDoesNotWrite},
	{"Successor", TestSuccessor},
	{"BrokenWriterIsFenced", TestBrokenWriterIsFenced},
	{"Exec", TestExec},
	{"VolumeMismatch", TestVolumeMismatch},
	{"PolicyMismatch", TestPolicyMismatch},
	{"MoveBetweenKinds", TestMoveBetweenKinds},
	{"History", TestHistory},
	{"ShortOutages", TestShortOutages},
	{"ServiceStops", TestMajorityLost},
	{"CutOffForLong", TestCutOffForLong},
	{"ServersOfOneStore", TestServersOfOneStore},
	{"RestoreUnderMounts", TestRestoreUnderMounts},
}

// inKubernetesForLong are tests of the view, to which all lock services are alike, and
// more histories.
var inKubernetesForLong = []namedTest{
	{"ManyWritersOnTwoMounts", TestManyWritersOnTwoMounts},
	{"ContendedOpen", TestContendedOpen},
	{"HolderIsUndisturbed", TestHolderIsUndisturbed},
	{"InterruptedOpenLeavesNothing", TestInterruptedOpenLeavesNothing},
	{"LinkedDuringWait", TestLinkedDuringWait},
	{"HolderOpensTheNameWaitedFor", TestHolderOpensTheNameWaitedFor},
	{"OpenedWhileItsNamesChange", TestOpenedWhileItsNamesChange},
	{"ParentRenamedOnAnotherMount", TestParentRenamedOnAnotherMount},
	{"ParentReplacedDuringWait", TestParentReplacedDuringWait},
	{"HolderReplacesItsFile", TestHolderReplacesItsFile},
	{"ReadLocksOfOneProgram", TestReadLocksOfOneProgram},
	{"LockAttributes", TestLockAttributes},
	{"TerminatedMountReleases", TestTerminatedMountReleases},
	{"ExecWaits", TestExecWaits},
	{"KilledUnderLoad", TestKilledUnderLoad},
	{"ThawedUnderLoad", TestThawedUnderLoad},
	{"CutOffForShort", TestCutOffForShort},
	{"FaultsAtRandom", TestFaultsAtRandom},
}

// inKubernetes keeps a volume's locks in a namespace of the API server's.
func (v *volume) inKubernetes(space string) {
	v.env = append(v.env, "LOCKFS_BACKEND=kubernetes", "LOCKFS_LEASE_NAMESPACE="+space,
		"LOCKFS_KUBE_QPS=1000", "LOCKFS_KUBE_BURST=1000", // the tests are in a hurry
		fmt.Sprintf("LOCKFS_NAME=volume-%d", volumesInKubernetes.Add(1)))
}
