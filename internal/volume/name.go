package volume

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName is the length of the longest namespace or name, in bytes: that of a
// DNS name, which is what Kubernetes allows its own.
const maxName = 253

// ErrName: a namespace or a name that cannot be part of a lock key.
var ErrName = errors.New("invalid name")

// ValidateName checks a namespace or the name of a volume, which are single
// components of the keys in the lock service and are shown to people. kind
// names it in the message. It fails with ErrName.
func ValidateName(kind, s string) error {
	problem := ""
	switch {
	case s == "":
		problem = "is empty"
	case s == "." || s == "..":
		problem = "stands for a directory"
	case strings.ContainsRune(s, '/'):
		problem = "contains a '/'"
	case !utf8.ValidString(s):
		problem = "is not valid UTF-8"
	case strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }):
		problem = "contains characters that cannot be printed"
	case len(s) > maxName:
		problem = fmt.Sprintf("has %d bytes, more than %d", len(s), maxName)
	default:
		return nil
	}
	return fmt.Errorf("%w: the %s %q %s; choose another", ErrName, kind, s, problem)
}
