package rrq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// serve runs a runner for the test and returns its address.
func serve(t testing.TB, h Handler) string {
	t.Helper()
	ln := listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- Serve(ctx, ln, h) }()
	t.Cleanup(func() {
		cancel()
		if err := <-result; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return ln.Addr().String()
}

func dial(t testing.TB, addr string) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func request(id string) *Request {
	return &Request{RequestID: id, JobID: "job-" + id, Function: "f", Params: json.RawMessage(`{"n":1}`),
		Context: Context{EnqueueTime: time.Unix(0, 0)}}
}

func TestServe_AnswersInOrder(t *testing.T) {
	addr := serve(t, func(_ context.Context, r *Request) Outcome {
		return Outcome{Status: Success, Result: r.Params}
	})
	c := dial(t, addr)
	for i := range 3 {
		o, err := c.Do(t.Context(), request(fmt.Sprint(i)))
		if err != nil || string(o.Result) != `{"n":1}` {
			t.Fatalf("request %d gives %+v, %v", i, o, err)
		}
	}
	if nc, err := net.Dial("tcp", addr); err != nil { // an empty connection is harmless
		t.Fatal(err)
	} else if err := nc.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Do(t.Context(), request("after")); err != nil {
		t.Fatal(err)
	}
}

// A cancel on another connection finds its request by either id.
func TestServe_Cancel(t *testing.T) {
	started := make(chan string, 2)
	addr := serve(t, func(ctx context.Context, r *Request) Outcome {
		started <- r.RequestID
		<-ctx.Done()
		return Outcome{}
	})
	for _, by := range []Cancel{{JobID: "whatever", RequestID: "x"}, {JobID: "job-x"}} {
		c := dial(t, addr)
		if err := c.Send(request("x")); err != nil {
			t.Fatal(err)
		}
		<-started
		for _, other := range []Cancel{{JobID: "job-x", RequestID: "y"}, {JobID: "job-y"}, by} {
			if err := SendCancel(t.Context(), addr, &other); err != nil {
				t.Fatal(err)
			}
		}
		o, err := c.Wait()
		if err != nil || o.Status != Error || o.Fault.Type != Cancelled || o.Fault.Message != "Job cancelled" {
			t.Fatalf("%+v gives %+v, %v", by, o, err)
		}
	}
}

func TestServe_CloseCancels(t *testing.T) {
	started, cause := make(chan bool), make(chan error)
	addr := serve(t, func(ctx context.Context, r *Request) Outcome {
		started <- true
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return Outcome{}
	})
	c := dial(t, addr)
	if err := c.Send(request("x")); err != nil {
		t.Fatal(err)
	}
	<-started
	c.HalfClose()
	if err := <-cause; !errors.Is(err, ErrDisconnected) {
		t.Errorf("cause is %v", err)
	}
	if o, err := c.Wait(); !errors.Is(err, ErrClosed) {
		t.Errorf("answer is %+v, %v; want none", o, err)
	}
}

func TestServe_Deadline(t *testing.T) {
	addr := serve(t, func(ctx context.Context, r *Request) Outcome {
		<-ctx.Done()
		return Outcome{}
	})
	c := dial(t, addr)
	for _, test := range []struct {
		in   time.Duration
		text string
	}{{-time.Second, "Job deadline exceeded"}, {30 * time.Millisecond, "Job execution timed out"}} {
		r := request("x")
		r.Context.Deadline = time.Now().Add(test.in)
		o, err := c.Do(t.Context(), r)
		if err != nil || o.Status != Timeout || o.Fault.Message != test.text || o.Fault.Type != TimedOut {
			t.Errorf("deadline in %s gives %+v, %v", test.in, o, err)
		}
	}
}

func TestServe_Refusals(t *testing.T) {
	release := make(chan struct{})
	var running sync.WaitGroup
	addr := serve(t, func(ctx context.Context, r *Request) Outcome {
		switch r.Function {
		case "wait":
			running.Done()
			<-release
		case "bad":
			return Outcome{Status: Success, Result: json.RawMessage(`{`)}
		case "large":
			return Outcome{Status: Success, Result: append(append([]byte{'"'}, make([]byte, MaxFrame)...), '"')}
		case "huge":
			b := make([]byte, MaxFrame+2)
			for i := range b {
				b[i] = '1'
			}
			return Outcome{Status: Success, Result: b}
		}
		return Outcome{Status: Success}
	})
	c := dial(t, addr)
	running.Add(MaxInFlight)
	for i := range MaxInFlight {
		r := request(fmt.Sprint(i))
		r.Function = "wait"
		if err := c.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	running.Wait()
	o, err := c.Do(t.Context(), request("65th"))
	if err != nil || o.Status != Error || o.Fault.Message != "Runner busy: too many in-flight requests" {
		t.Errorf("65th request gives %+v, %v", o, err)
	}
	close(release)
	for function, text := range map[string]string{
		"bad": "Result is not JSON", "large": "Result is not JSON",
		"huge": fmt.Sprintf("Result too large: frame of %d bytes is larger than the limit of %d", MaxFrame+2+len(`{"type":"response","payload":{"job_id":"job-x","request_id":"x","status":"success","result":,"error":null,"retry_after_seconds":null}}`), MaxFrame),
	} {
		r := request("x")
		r.Function = function
		if o, err := dial(t, addr).Do(t.Context(), r); err != nil || o.Fault == nil || o.Fault.Message != text {
			t.Errorf("%s gives %+v, %v", function, o.Fault, err)
		}
	}
}

func TestServe_ClosesOnMalformedFrame(t *testing.T) {
	addr := serve(t, func(context.Context, *Request) Outcome { return Outcome{Status: Success} })
	for _, wire := range [][]byte{
		frame.Append(nil, []byte("garbage")),
		make([]byte, 4),
		{0xff, 0xff, 0xff, 0xff},
		response(goodResponse),
	} {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Write(wire); err != nil {
			t.Fatal(err)
		}
		if o, err := NewConn(nc).Wait(); !errors.Is(err, ErrClosed) {
			t.Errorf("%q gives %+v, %v; want the end", wire, o, err)
		}
		_ = nc.Close()
	}
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nc.Close() }()
	v1 := `{"type":"request","payload":{"protocol_version":"1","request_id":"r#1","job_id":"j","function_name":"f","params":{},"context":{}}}`
	if _, err := nc.Write(frame.Append(nil, []byte(v1))); err != nil {
		t.Fatal(err)
	}
	c := NewConn(nc)
	c.requestID, c.jobID = "r#1", "j"
	if o, err := c.Wait(); err != nil || o.Fault == nil || o.Fault.Message != "Unsupported protocol version" {
		t.Errorf("version 1 gives %+v, %v", o, err)
	}
}

// TestServe_ClosedBeforeRead checks that a request is not started if the node has closed the connection
// before the runner has read it, as happens to a runner that was stopped and continued.
func TestServe_ClosedBeforeRead(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	send := func(id string) *Conn {
		c, err := Dial(t.Context(), ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Send(&Request{RequestID: id, JobID: id, Function: "f"}); err != nil {
			t.Fatal(err)
		}
		return c
	}
	if err := send("given up").Close(); err != nil {
		t.Fatal(err)
	}
	waiting := send("waits")
	defer waiting.Close()
	started := make(chan string, 2)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- Serve(ctx, ln, func(_ context.Context, r *Request) Outcome {
			started <- r.JobID
			return Outcome{Status: Success}
		})
	}()
	if o, err := waiting.Wait(); err != nil || o.Status != Success {
		t.Errorf("%+v, %v", o, err)
	}
	stop()
	<-served
	close(started)
	for id := range started {
		if id != "waits" {
			t.Errorf("the request %q was started", id)
		}
	}
}
