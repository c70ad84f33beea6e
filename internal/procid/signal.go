package procid

import "strconv"

const sigkill = 1 << (9 - 1)

// KillPending reports whether thread tid has a pending SIGKILL or has ended, so that nobody uses
// its answer. Other deadly signals become SIGKILL, except those that dump core. False if the
// status cannot be read for lack of descriptors or memory.
func (p Proc) KillPending(tid int) bool {
	var array [bufSize]byte
	status, err := p.read(array[:], tid, "status")
	if err != nil {
		return gone(err)
	}
	return ended(status) || (signals(status, "\nSigPnd:\t")|signals(status, "\nShdPnd:\t"))&sigkill != 0
}

// SignalPending reports whether thread tid has a signal pending that it does not block, or has ended.
func (p Proc) SignalPending(tid int) bool {
	var array [bufSize]byte
	status, err := p.read(array[:], tid, "status")
	if err != nil {
		return gone(err)
	}
	blocked := signals(status, "\nSigBlk:\t")
	return ended(status) || (signals(status, "\nSigPnd:\t")|signals(status, "\nShdPnd:\t"))&^blocked != 0
}

// exiting is PF_EXITING in the flags of a /proc/<tid>/stat.
const exiting = 4

// Exiting reports whether thread tid is exiting or has ended.
func (p Proc) Exiting(tid int) bool {
	var array [bufSize]byte
	b, err := p.readStat(array[:], tid)
	if err != nil {
		return gone(err)
	}
	st, err := parseStat(b)
	return err == nil && st.flags&exiting != 0
}

func ended(status []byte) bool {
	state, _ := statusLine(status, "\nState:\t")
	return len(state) > 0 && (state[0] == 'Z' || state[0] == 'X')
}

// signals returns the set of signals in a line of a status; none if it cannot be read.
func signals(status []byte, key string) uint64 {
	mask, _ := statusLine(status, key)
	set, _ := strconv.ParseUint(string(mask), 16, 64)
	return set
}
