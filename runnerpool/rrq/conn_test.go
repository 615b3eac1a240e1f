package rrq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

var testRequest = Request{RequestID: "r#1", JobID: "j", Function: "f", Context: Context{EnqueueTime: time.Unix(0, 0)}}

// fakeRunner runs a listener that writes the next of the given raw answers
// after each request.
func fakeRunner(t *testing.T, answers ...[]byte) *Conn {
	t.Helper()
	ln := listen(t)
	var done sync.WaitGroup
	done.Go(func() {
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		frames := frame.NewReader(nc, MaxFrame)
		for _, answer := range answers {
			if _, err := frames.Next(); err != nil {
				return
			}
			if _, err := nc.Write(answer); err != nil {
				return
			}
		}
		_ = nc.Close()
	})
	c, err := Dial(t.Context(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = ln.Close()
		done.Wait()
	})
	return c
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

func response(format string, args ...any) []byte {
	return frame.Append(nil, fmt.Appendf(nil, `{"type":"response","payload":{`+format+`}}`, args...))
}

const goodResponse = `"job_id":"j","request_id":"r#1","status":"success","result":1`

func TestDo_SkipsUnmatchedFrames(t *testing.T) {
	answer := response(`"job_id":"j","request_id":"r#0","status":"success"`) // late, of another request
	answer = append(answer, frame.Append(nil, []byte(`{"type":"cancel","payload":{"job_id":"j"}}`))...)
	answer = append(answer, response(goodResponse)...)
	answer = append(answer, response(goodResponse)...) // repeated: the second one arrives during the next request
	c := fakeRunner(t, answer, response(`"job_id":"j","request_id":"r#2","status":"success","result":2`))
	var stray []string
	c.OnUnmatched = func(id string) { stray = append(stray, id) }
	for i, want := range []string{"1", "2"} {
		r := testRequest
		r.RequestID = fmt.Sprintf("r#%d", i+1)
		o, err := c.Do(t.Context(), &r)
		if err != nil || string(o.Result) != want {
			t.Fatalf("request %d: result %s, %v, want %s", i+1, o.Result, err, want)
		}
	}
	if got := strings.Join(stray, " "); got != "r#0 cancel r#1" {
		t.Errorf("unmatched frames are %q", got)
	}
}

func TestDo_Errors(t *testing.T) {
	var large *frame.TooLargeError
	for _, test := range []struct {
		name   string
		answer []byte
		want   func(error) bool
	}{
		{"closed", nil, wantErr(ErrClosed)},
		{"cut", response(goodResponse)[:20], wantErr(io.ErrUnexpectedEOF)},
		{"no request id", response(`"job_id":"j","status":"success"`), wantErr(ErrMismatch)},
		{"foreign job", response(`"job_id":"k","request_id":"r#1","status":"success"`), wantErr(ErrMismatch)},
		{"no job id", response(`"request_id":"r#1","status":"success"`), wantErr(ErrMismatch)},
		{"garbage", frame.Append(nil, []byte("garbage")), wantErr(ErrMalformed)},
		{"zero length", make([]byte, 4), wantErr(frame.ErrZeroLength)},
		{"17 MiB announced", []byte{1, 0x10, 0, 0}, func(err error) bool { return errors.As(err, &large) }},
		{"HTTP", []byte("HTTP/1.1 400 Bad Request\r\n"), func(err error) bool { return errors.As(err, &large) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := fakeRunner(t, test.answer).Do(t.Context(), &testRequest)
			if !test.want(err) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func wantErr(want error) func(error) bool {
	return func(err error) bool { return errors.Is(err, want) }
}

func TestDo_ReadsFrameOfMaxSize(t *testing.T) {
	body := `{"type":"response","payload":{"job_id":"j","request_id":"r#1","status":"success","result":"`
	tail := `"}}`
	filler := strings.Repeat("x", MaxFrame-len(body)-len(tail))
	c := fakeRunner(t, frame.Append(nil, []byte(body+filler+tail)))
	o, err := c.Do(t.Context(), &testRequest)
	if err != nil || len(o.Result) != len(filler)+2 {
		t.Fatalf("a frame as large as the limit gives %d bytes and %v", len(o.Result), err)
	}
}

// An interrupted wait keeps a partial answer.
func TestWait_ContinuesAfterDeadline(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	c := NewConn(near)
	defer func() { _ = c.Close() }()
	step := make(chan struct{})
	var runner sync.WaitGroup
	defer runner.Wait()
	runner.Go(func() {
		if _, err := frame.NewReader(far, MaxFrame).Next(); err != nil {
			t.Errorf("runner reads: %v", err)
		}
		answer := response(goodResponse)
		for _, part := range [][]byte{answer[:3], answer[3:30], answer[30:]} {
			if _, err := far.Write(part); err != nil { // returns when it has been read
				t.Errorf("runner writes: %v", err)
			}
			c.SetDeadline(time.Now())
			<-step
		}
	})
	if err := c.Send(&testRequest); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := c.Wait(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("interrupted wait gives %v", err)
		}
		c.SetDeadline(time.Time{})
		step <- struct{}{}
	}
	o, err := c.Wait()
	step <- struct{}{}
	if err != nil || string(o.Result) != "1" {
		t.Fatalf("wait after interrupts gives %s and %v", o.Result, err)
	}
}

func TestDo_ContextEnds(t *testing.T) {
	ln := listen(t) // accepts in the kernel, never answers
	c, err := Dial(t.Context(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Do(ctx, &testRequest); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error is %v, want the context's", err)
	}
}

func TestIdle_Closed(t *testing.T) {
	c := fakeRunner(t, response(goodResponse)) // answers once, then closes
	if !c.Idle() {
		t.Fatal("fresh connection is not idle")
	}
	if _, err := c.Do(t.Context(), &testRequest); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(); !errors.Is(err, ErrClosed) { // the end of the connection has arrived
		t.Fatalf("wait for the end gives %v", err)
	}
	if c.Idle() {
		t.Fatal("closed connection is idle")
	}
}

// An unsolicited frame is not taken for the answer to the next request.
func TestIdle_UnexpectedFrame(t *testing.T) {
	twice := append(response(goodResponse), response(`"job_id":"j","status":"success"`)...)
	c := fakeRunner(t, twice)
	if _, err := c.Do(t.Context(), &testRequest); err != nil {
		t.Fatal(err)
	}
	if c.Idle() {
		t.Fatal("a connection with an unsolicited frame is idle")
	}
}
