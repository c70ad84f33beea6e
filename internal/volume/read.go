package volume

// NameOf returns the namespace and name of the volume with the root source, from its
// marker. Errors: fs.ErrNotExist without a marker, *InvalidError, or the file system's.
func NameOf(source string) (namespace, name string, err error) {
	id, err := readMarker(source)
	return id.Namespace, id.Name, err
}
