package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// statusTimeout bounds the daemon's answer; it asks its views for 2 s.
const statusTimeout = 10 * time.Second

func newStatus() *cobra.Command {
	var addr string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say how each volume of this machine's daemon is, and what is wrong",
		Long: `Ask the daemon of this machine, or of this pod, how each of its volumes is:

  [+] it is served
  [!] it has trouble, and the daemon serves the others
  [-] it is not served yet
  [*] a rule of docs/SEMANTICS.md does not hold, for the way the volume is mounted

The exit status is 1 if a volume has trouble, or the daemon does not answer.`,
		Example: `  kubectl -n lockfs-system exec POD -- lockfs status`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return status(cmd.Context(), addr, os.Stdout)
		},
	}
	cmd.Flags().StringVar(&addr, "http", ":9808", "`address` that the daemon's --http names")
	bindEnv(cmd)
	return cmd
}

func status(ctx context.Context, addr string, out io.Writer) error {
	if strings.HasPrefix(addr, ":") {
		addr = "localhost" + addr
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/readyz", nil)
	if err != nil {
		return usage(fmt.Errorf("--http %s: %w", addr, err))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("the daemon does not answer: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("the daemon's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable {
		return fmt.Errorf("what answers at %s is no lockfs: %s", addr, resp.Status)
	}
	if _, err := out.Write(body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || strings.Contains("\n"+string(body), "\n[!]") {
		return statusError{exitFailure, nil}
	}
	return nil
}
