// Package sequential is a runner written from the text of the RRQ contract alone,
// and the strictest that the contract allows: it reads its socket's address from
// the environment, takes no arguments, runs one request at a time on each
// connection, ignores deadlines, and reports everything that the contract does
// not allow as a violation. An orchestrator that works with it works with every
// conforming runner.
//
// If YARD_WITNESS names a file, the runner appends a line to it for each handler
// that starts, "<request id> <job id> <attempt>", for each that ends,
// "end <request id>", and for each violation, beginning with "!". A job that is
// already running in another process is a violation as well.
package sequential

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
)

// Main listens on the socket named by the environment and serves until the
// process is killed.
func Main(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("a runner takes no arguments: %q", args)
	}
	r := &runner{witness: os.Getenv("YARD_WITNESS"), running: map[string]*request{}}
	ln, err := net.Listen("tcp", os.Getenv("RRQ_RUNNER_TCP_SOCKET"))
	if err != nil {
		return err
	}
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go r.serve(c) // ends with the process
	}
}

type runner struct {
	witness string

	mu      sync.Mutex
	running map[string]*request // by request id
}

// serve reads requests and answers them one by one. It does not notice that the
// connection has ended before it has written the answer.
func (r *runner) serve(c net.Conn) {
	defer c.Close()
	for {
		payload, err := readFrame(c)
		if errors.Is(err, io.EOF) {
			return
		}
		var m message
		if err == nil {
			m, err = parse(payload)
		}
		if err != nil {
			r.reportViolation("%v in %.300q", err, payload)
			return
		}
		if m.cancel != nil {
			r.cancel(m.cancel)
			continue
		}
		if _, err := c.Write(appendFrame(r.run(m.request))); err != nil {
			return // the node has closed the connection
		}
	}
}

// readFrame reads one frame: a length of four bytes, big-endian, and a payload. It
// returns io.EOF if the connection ends before the payload begins.
func readFrame(c io.Reader) ([]byte, error) {
	var header [4]byte
	if _, err := io.ReadFull(c, header[:]); err != nil {
		return nil, io.EOF // the connection may end at any time
	}
	payload := make([]byte, binary.BigEndian.Uint32(header[:]))
	if _, err := io.ReadFull(c, payload); err != nil {
		return nil, fmt.Errorf("incomplete frame of %d bytes: %w", len(payload), err)
	}
	return payload, nil
}

func appendFrame(payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...)
}

// run runs the handler of a request and returns the envelope of its outcome.
func (r *runner) run(q *request) []byte {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	q.cancel = cancel
	r.mu.Lock()
	twice := r.running[q.RequestID] != nil
	r.running[q.RequestID] = q
	r.mu.Unlock()
	if twice {
		r.reportViolation("request %s came twice", q.RequestID)
	}
	o := outcome{Status: "error", Error: &fault{
		Message: "No handler registered for function '" + q.FunctionName + "'", Type: "handler_not_found",
	}}
	if h := handlers[q.FunctionName]; h != nil {
		release := r.lockJob(q)
		r.writeWitness("%s %s %d", q.RequestID, q.JobID, q.Context.Attempt)
		o = h(ctx, q)
		r.writeWitness("end %s", q.RequestID)
		release()
	}
	r.mu.Lock()
	delete(r.running, q.RequestID)
	r.mu.Unlock()
	o.JobID, o.RequestID = q.JobID, q.RequestID
	return o.text()
}

// cancel cancels the handlers of the request or job that c names. Only the
// handlers that watch their context stop.
func (r *runner) cancel(c *cancelRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, q := range r.running {
		if c.RequestID != nil && *c.RequestID == id || c.RequestID == nil && c.JobID == q.JobID {
			q.cancel()
		}
	}
}

func (r *runner) reportViolation(format string, args ...any) { r.writeWitness("! "+format, args...) }

// writeWitness appends a line to the witness file in a single write, so that the
// lines of concurrent processes do not mix. It ends the process on failure.
func (r *runner) writeWitness(format string, args ...any) {
	if r.witness == "" {
		return
	}
	f, err := os.OpenFile(r.witness, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = fmt.Fprintf(f, format+"\n", args...)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "witness:", err)
		os.Exit(1)
	}
}
