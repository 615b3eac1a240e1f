package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"

	"golang.org/x/sync/errgroup"
)

// profileEnv is a variable with the host:port where a node serves profiles under
// /debug/pprof/. It is for developers: a client that can reach the port can read
// the node's memory.
const profileEnv = "YARD_PPROF"

// withProfiling calls run and, if addr is not empty, serves profiles there until
// run returns.
func withProfiling(ctx context.Context, addr string, run func(context.Context) error) error {
	if addr == "" {
		return run(ctx)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for profiles (%s): %w", profileEnv, err)
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
