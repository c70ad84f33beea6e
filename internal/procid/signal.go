package procid

import "strconv"

// sigkill is SIGKILL in a signal mask of /proc/<tid>/status.
const sigkill = 1 << (9 - 1)

// KillPending reports whether thread tid has a pending SIGKILL, or has ended: nobody will
// use the answer to its request. Other deadly signals show as SIGKILL too, as soon as the
// kernel has decided to end the process, except those that dump core. If the status cannot
// be read for want of descriptors or memory, it reports false.
func (p Proc) KillPending(tid int) bool {
	var array [bufSize]byte
	status, err := p.read(array[:], tid, "status")
	if err != nil {
		return gone(err)
	}
	if state, _ := statusLine(status, "\nState:\t"); len(state) > 0 && (state[0] == 'Z' || state[0] == 'X') {
		return true
	}
	return hasSigkill(status, "\nSigPnd:\t") || hasSigkill(status, "\nShdPnd:\t")
}

// exiting is PF_EXITING in the flags of a /proc/<tid>/stat.
const exiting = 4

// Exiting reports whether thread tid is exiting or has ended: it no longer runs its
// program.
func (p Proc) Exiting(tid int) bool {
	var array [bufSize]byte
	b, err := p.readStat(array[:], tid)
	if err != nil {
		return gone(err)
	}
	st, err := parseStat(b)
	return err == nil && st.flags&exiting != 0
}

func hasSigkill(status []byte, key string) bool {
	mask, _ := statusLine(status, key)
	set, err := strconv.ParseUint(string(mask), 16, 64)
	return err == nil && set&sigkill != 0
}
