package runnerpool

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

// externalConfig returns the configuration of an external runner "r" at addr.
func externalConfig(addr net.Addr) Config {
	cfg := testConfig("", func(c *RunnerConfig) {
		c.Cmd, c.TCPHost, c.TCPPort, c.PoolSize = nil, "localhost", addr.(*net.TCPAddr).Port, 7
	})
	cfg.Management = External
	return cfg
}

// serveRunner runs a runner on ln until the test calls stop.
func serveRunner(t *testing.T, ln net.Listener) (stop func()) {
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

// An external runner is used while it is reachable, and neither started nor
// stopped. Its end and its return are noticed while it has no jobs.
func TestExternalRunner(t *testing.T) {
	ln := testnet.Listen(t)
	addr := ln.Addr()
	stop := serveRunner(t, ln)
	cfg := externalConfig(addr)
	cfg.ConnectTimeoutMS = 1 // for how long it may be away before it is reported
	y := startHarness(t, cfg)
	y.expect(y.run("echo", nil), job.Success, true, "")
	y.expect(y.run("wait", withTimeout(1)), job.TimedOut, true, "Job deadline exceeded")
	if s := y.Status()[0]; s.Size != 1 || s.Up != 1 || s.Managed {
		t.Errorf("status is %+v", s)
	}
	for range 2 { // with a connection that ends, and without any
		stop()
		y.awaitOffer(0)
		s := y.awaitReason("does not accept connections")
		if s.CrashLooping != 0 {
			t.Errorf("a runner that is away crash-loops: %+v", s)
		}
		if note := y.awaitNote(); !note.Stalled || note.Detail != job.StalledUnreachable {
			t.Errorf("reported %+v", note)
		}
		var err error
		if ln, err = net.Listen("tcp", addr.String()); err != nil {
			t.Fatal(err)
		}
		stop = serveRunner(t, ln)
		y.awaitOffer(1)
		y.members[0].reportRecovered() // as after a minute
		if note := y.awaitNote(); note.Stalled {
			t.Errorf("reported %+v", note)
		}
	}
	y.expect(y.run("echo", nil), job.Success, true, "")
	stop()
}

// A job whose external runner refuses the connection goes back without an attempt or
// a loss, however often, and the runner is no longer offered.
func TestExternalRunner_RefusedDial(t *testing.T) {
	ln := testnet.Listen(t)
	cfg := externalConfig(ln.Addr())
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	pools := New(cfg, "n", newRecorder(), slog.New(slog.DiscardHandler))
	w := newWorker(pools.members[0], nil, ln.Addr().String(), pools.members[0].port)
	s := &slot{w: w}
	o := s.execute(newDispatch(assignment(1, "echo", w.name), specOf("{}"), w, time.Minute))
	if o.Status != job.Declined || o.Started || o.Fault == nil || !strings.Contains(o.Fault.Message, "cannot be reached") {
		t.Errorf("outcome is %s (started %t) %+v", o.Status, o.Started, o.Fault)
	}
	last := job.Attempt{Number: 1, MaxAttempts: 1, Losses: job.MaxLosses - 1}
	if v := job.DefaultPolicy.Decide(last, nil, o); v.Next != job.NextGiveBack || v.Loss {
		t.Errorf("verdict is %+v", v)
	}
	if pools.mu.Lock(); pools.available(w) != 0 {
		t.Error("the runner is still offered")
	}
	pools.mu.Unlock()

	w.work <- newDispatch(assignment(2, "echo", w.name), specOf("{}"), w, time.Minute)
	pools.active.Add(1)
	close(w.closed)
	s.run(t.Context(), false) // a dispatch that waits for the slot when the runner is found gone
	if o := pools.executor.(*recorder).awaitOutcome(); o.Status != job.Declined || o.Started {
		t.Errorf("outcome is %s (started %t) %+v", o.Status, o.Started, o.Fault)
	}
}

// An idle connection to an external runner shows that it lives, so that a runner which
// serves one connection at a time is not taken for dead.
func TestExternalRunner_ProbeOfOpenConnection(t *testing.T) {
	ln := testnet.Listen(t)
	pools := New(externalConfig(ln.Addr()), "n", newRecorder(), slog.New(slog.DiscardHandler))
	w := newWorker(pools.members[0], nil, ln.Addr().String(), pools.members[0].port)
	s := &slot{w: w}
	defer s.closeConn()
	if err := s.connect(); err != nil {
		t.Fatal(err)
	}
	peer, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := ln.Close(); err != nil { // it would refuse a second connection
		t.Fatal(err)
	}
	s.probe(t.Context())
	if w.replaceErr != nil {
		t.Fatalf("a runner with an open connection is given up: %v", w.replaceErr)
	}
	if err := peer.Close(); err != nil {
		t.Fatal(err)
	}
	late, tick := time.After(testTimeout), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for w.replaceErr == nil {
		s.probe(t.Context())
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("a runner that has closed its connection and its listener is still offered")
		}
	}
}

// An external runner that ends closes its connections before its listener. It is found gone
// before the slot of a job that has failed is free, so that no further job is sent to it.
func TestExternalRunner_Ends(t *testing.T) {
	ln := testnet.Listen(t)
	pools := New(externalConfig(ln.Addr()), "n", newRecorder(), slog.New(slog.DiscardHandler))
	w := newWorker(pools.members[0], nil, ln.Addr().String(), pools.members[0].port)
	s := &slot{w: w}
	defer s.closeConn()
	ended := make(chan error, 1)
	go func() {
		conn, err := ln.Accept()
		if err == nil {
			_, err = conn.Read(make([]byte, 1)) // of the request
			conn.Close()
		}
		time.Sleep(exitDelay / 4) // the end of a process takes some time
		ln.Close()
		ended <- err
	}()
	o := s.execute(newDispatch(assignment(1, "echo", w.name), specOf("{}"), w, time.Minute))
	if err := <-ended; err != nil || o.Status != job.Error || !o.Started {
		t.Errorf("outcome is %s (started %t) %+v, %v", o.Status, o.Started, o.Fault, err)
	}
	if pools.mu.Lock(); pools.available(w) != 0 {
		t.Error("the runner is still offered when the job's slot is free")
	}
	pools.mu.Unlock()
}
