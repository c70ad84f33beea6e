package lockmgr

// Unlocked returns a hold without locks: its file may be written whatever becomes of the session.
func (m *Manager) Unlocked(owner Owner) *Hold { return &Hold{m: m, owner: owner, unlocked: true} }

// Unlocked reports whether the hold is one of Manager.Unlocked.
func (h *Hold) Unlocked() bool { return h.unlocked }
