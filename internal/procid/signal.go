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
	if state, _ := statusLine(status, "\nState:\t"); len(state) > 0 && (state[0] == 'Z' || state[0] == 'X') {
		return true
	}
	return hasSigkill(status, "\nSigPnd:\t") || hasSigkill(status, "\nShdPnd:\t")
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

func hasSigkill(status []byte, key string) bool {
	mask, _ := statusLine(status, key)
	set, err := strconv.ParseUint(string(mask), 16, 64)
	return err == nil && set&sigkill != 0
}
