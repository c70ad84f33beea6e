package volume

// NameOf returns the volume whose root source is, as its marker says. Errors:
// fs.ErrNotExist when there is no marker, *InvalidError, or the file system's.
func NameOf(source string) (namespace, name string, err error) {
	id, err := readMarker(source)
	return id.Namespace, id.Name, err
}
