// Package supervise lets a daemon's work outlive its process.
//
// The supervisor starts the program once more, as its worker, which does all the work. The worker
// makes a shadow: a process that only waits, and shares the worker's table of descriptors. When the
// worker dies, its shadow still has what was open, and the journal, in shared memory, says what that
// was. The supervisor then starts another worker, which takes from both what it needs.
//
// The supervisor learns of a worker's death when the last of its threads has ended. So no system
// call of the dead worker is under way any more.
package supervise
