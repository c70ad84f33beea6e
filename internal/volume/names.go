package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

// Two spellings of one letter, which some file systems treat as one name.
const (
	composed   = "\u00e9"
	decomposed = "e\u0301"
)

// checkNames refuses a file system that takes several spellings for one file: locks are of bytes.
// For case it looks for the marker; for the rest it creates a file, if it can. Errors:
// *NamesError.
func checkNames(source string, marker identity) error {
	if other, err := readNamed(source, strings.ToUpper(MarkerName)); err == nil && other.ID == marker.ID {
		return &NamesError{Source: source, One: "file", Other: "FILE"}
	}
	probe := filepath.Join(source, MarkerName+"."+uuid.NewString()+"-")
	if f, err := os.OpenFile(probe+composed, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		f.Close()
		defer os.Remove(probe + composed)
		if _, err := os.Lstat(probe + decomposed); !errors.Is(err, fs.ErrNotExist) {
			return &NamesError{Source: source, One: composed, Other: decomposed}
		}
	}
	return nil
}
