package lab

import (
	"encoding/binary"
	"encoding/hex"
)

const ACLAccess, ACLDefault = "system.posix_acl_access", "system.posix_acl_default"

// ACL is the attribute, in hex, of an ACL that gives user all, and group and
// others nothing.
func ACL(user uint32) string {
	b := binary.LittleEndian.AppendUint32(nil, 2) // version
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{0x01, 7, ^uint32(0)}, {0x02, 7, user}, {0x04, 0, ^uint32(0)}, {0x10, 7, ^uint32(0)}, {0x20, 0, ^uint32(0)}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return hex.EncodeToString(b)
}
