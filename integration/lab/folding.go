package lab

import "github.com/hanwen/go-fuse/v2/fuse"

// A folding backing takes several names for one, as vfat, CIFS or ZFS may.
type foldingFS struct {
	*cachingFS
	fold func(string) string
}

func (f *foldingFS) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return f.cachingFS.Lookup(cancel, in, f.fold(name), out)
}

func (f *foldingFS) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return f.cachingFS.Create(cancel, in, f.fold(name), out)
}

func (f *foldingFS) Unlink(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return f.cachingFS.Unlink(cancel, in, f.fold(name))
}

func (f *foldingFS) Rename(cancel <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	return f.cachingFS.Rename(cancel, in, f.fold(from), f.fold(to))
}

// Folding mounts one over the volume's directory, until the test ends.
func (v *Volume) Folding(fold func(string) string) {
	v.T.Helper()
	below, err := newCachingFS(ClientConfig{Source: v.Source})
	if err != nil {
		v.T.Fatal(err)
	}
	server, err := fuse.NewServer(&foldingFS{below, fold}, v.Source, &fuse.MountOptions{Name: "lockfs-test", FsName: "folding", DisableReadDirPlus: true})
	if err != nil {
		v.T.Fatal(err)
	}
	go server.Serve()
	v.T.Cleanup(func() { endServer(v.T, server, v.Source) })
	if err := server.WaitMount(); err != nil {
		v.T.Fatal(err)
	}
}
