package runnerpool

import (
	"context"
	"net"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

// An external runner is used while it is reachable, and neither started nor
// stopped.
func TestExternalRunner(t *testing.T) {
	ln := testnet.Listen(t)
	addr := ln.Addr().(*net.TCPAddr)
	serve := func(ln net.Listener) (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- rrq.Serve(ctx, ln, handleRequest) }()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	stop := serve(ln)
	cfg := testConfig("", func(c *RunnerConfig) { c.Cmd, c.TCPHost, c.TCPPort, c.PoolSize = nil, "localhost", addr.Port, 7 })
	cfg.Management = External
	y := startHarness(t, cfg)
	y.expect(y.run("echo", nil), job.Success, true, "")
	y.expect(y.run("wait", withTimeout(1)), job.TimedOut, true, "Job deadline exceeded")
	if s := y.Status()[0]; s.Size != 1 || s.Up != 1 || s.Managed {
		t.Errorf("status is %+v", s)
	}
	stop()
	if o := y.run("echo", nil); o.Status != job.Error {
		t.Errorf("without a runner the outcome is %s", o.Status)
	}
	y.awaitReason("does not accept connections")
	var err error
	if ln, err = net.Listen("tcp", addr.String()); err != nil {
		t.Fatal(err)
	}
	stop = serve(ln)
	defer stop()
	y.expect(y.run("echo", nil), job.Success, true, "")
}
