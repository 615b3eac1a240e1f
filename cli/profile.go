package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"

	"golang.org/x/sync/errgroup"
)

// profileVariable names a host:port where a node serves its profiles under
// /debug/pprof/. It is for those who work on the yard: who can reach it sees
// the node's memory.
const profileVariable = "YARD_PPROF"

// profiled runs run, and beside it the listener if addr is not empty.
func profiled(ctx context.Context, addr string, run func(context.Context) error) error {
	if addr == "" {
		return run(ctx)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for profiles, as %s asks: %w", profileVariable, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: mux}
	var parts errgroup.Group
	parts.Go(func() error {
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve profiles: %w", err)
		}
		return nil
	})
	err = run(ctx)
	return errors.Join(err, server.Close(), parts.Wait())
}
