// Command sidecars stands in for two of Kubernetes' CSI sidecars, whose sources are no module: the
// node-driver-registrar and the livenessprobe. It takes the flags of theirs that the manifests give.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	driver := flag.String("csi-address", "", "socket of the driver")
	registered := flag.String("kubelet-registration-path", "", "the same socket as the kubelet sees it: register there")
	port := flag.Int("health-port", 0, "serve /healthz there")
	flag.Parse()
	if err := run(*driver, *registered, *port); err != nil {
		fmt.Fprintln(os.Stderr, "sidecars:", err)
		os.Exit(1)
	}
}

func run(driver, registered string, port int) error {
	conn, err := grpc.NewClient("unix://"+driver, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return err
	}
	defer conn.Close()
	identity := csi.NewIdentityClient(conn)
	if registered == "" {
		return serveHealth(identity, port)
	}
	info, err := identity.GetPluginInfo(context.Background(), &csi.GetPluginInfoRequest{})
	if err != nil {
		return err
	}
	return register(info.Name, registered)
}

func serveHealth(identity csi.IdentityClient, port int) error {
	http.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if _, err := identity.Probe(ctx, &csi.ProbeRequest{}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	return http.ListenAndServe(fmt.Sprintf(":%d", port), nil)
}

// registrar tells the kubelet, which watches a directory for sockets, where a driver is.
type registrar struct {
	registration.UnimplementedRegistrationServer
	name, endpoint string
	refused        chan error
}

func register(name, endpoint string) error {
	socket := filepath.Join("/registration", name+"-reg.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	r := &registrar{name: name, endpoint: endpoint, refused: make(chan error, 1)}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, r)
	go func() { r.refused <- server.Serve(l) }()
	return <-r.refused
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: r.name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !s.PluginRegistered {
		r.refused <- errors.New(s.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}
