package lockmgr

// Steps counts how many requests were woken, and how much was looked at for them.
func Steps(m *Manager) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.table.steps
}

// Slots counts the keys and the directories that a Manager knows.
func Slots(m *Manager) (keys, dirs int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.table.slots), len(m.table.dirs)
}
