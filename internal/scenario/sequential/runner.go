// Package sequential is a runner written from the contract's text alone, the
// strictest there can be: it learns its socket from the environment and takes
// no argument, runs one request at a time on each connection, keeps no
// deadline, knows nothing that the text does not name, and complains of
// whatever the text does not allow. What works with it works with any runner.
//
// If the environment names a file in YARD_WITNESS, it gets a line for each
// handler that begins, "<request id> <job id> <attempt>", and for each that ends,
// "end <request id>", and one that begins with "!" for each complaint: also of a
// job that runs already somewhere else.
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

// Main serves the socket that the environment names, until it is killed.
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
		go r.converse(c) // until the process is killed
	}
}

type runner struct {
	witness string

	mu      sync.Mutex
	running map[string]*request // by request id
}

// converse reads and answers, one message after the other. It does not notice
// the end of the connection before it has answered.
func (r *runner) converse(c net.Conn) {
	defer c.Close()
	for {
		payload, err := read(c)
		if errors.Is(err, io.EOF) {
			return
		}
		var m message
		if err == nil {
			m, err = parse(payload)
		}
		if err != nil {
			r.complain("%v in %.300q", err, payload)
			return
		}
		if m.cancel != nil {
			r.cancel(m.cancel)
			continue
		}
		if _, err := c.Write(frame(r.run(m.request))); err != nil {
			return // nobody listens any more
		}
	}
}

func read(c io.Reader) ([]byte, error) {
	var header [4]byte
	if _, err := io.ReadFull(c, header[:]); err != nil {
		return nil, io.EOF // a connection may end without a word
	}
	payload := make([]byte, binary.BigEndian.Uint32(header[:]))
	if _, err := io.ReadFull(c, payload); err != nil {
		return nil, fmt.Errorf("a frame of %d bytes has no end: %w", len(payload), err)
	}
	return payload, nil
}

func frame(payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...)
}

// run runs a request to its end.
func (r *runner) run(q *request) []byte {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	q.cancel = cancel
	r.mu.Lock()
	twice := r.running[q.RequestID] != nil
	r.running[q.RequestID] = q
	r.mu.Unlock()
	if twice {
		r.complain("request %s came twice", q.RequestID)
	}
	o := outcome{Status: "error", Error: &fault{
		Message: "No handler registered for function '" + q.FunctionName + "'", Type: "handler_not_found",
	}}
	if h := handlers[q.FunctionName]; h != nil {
		release := r.hold(q)
		r.note("%s %s %d", q.RequestID, q.JobID, q.Context.Attempt)
		o = h(ctx, q)
		r.note("end %s", q.RequestID)
		release()
	}
	r.mu.Lock()
	delete(r.running, q.RequestID)
	r.mu.Unlock()
	o.JobID, o.RequestID = q.JobID, q.RequestID
	return o.text()
}

// cancel ends the handlers that heed it. What is not running is not there.
func (r *runner) cancel(c *cancelRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, q := range r.running {
		if c.RequestID != nil && *c.RequestID == id || c.RequestID == nil && c.JobID == q.JobID {
			q.cancel()
		}
	}
}

func (r *runner) complain(format string, args ...any) { r.note("! "+format, args...) }

// note appends a line to the witness, in one write.
func (r *runner) note(format string, args ...any) {
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
