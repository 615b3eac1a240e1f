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
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
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
		r.writeWitness("%s %s %d", q.Context.DispatchID, q.JobID, q.Context.Attempt)
		o = h(ctx, q)
		r.writeWitness("end %s", q.Context.DispatchID)
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

// message is a decoded envelope: either a request or a cancel.
type message struct {
	request *request
	cancel  *cancelRequest
}

type request struct {
	ProtocolVersion string          `json:"protocol_version"`
	RequestID       string          `json:"request_id"`
	JobID           string          `json:"job_id"`
	FunctionName    string          `json:"function_name"`
	Params          json.RawMessage `json:"params"`
	RawContext      json.RawMessage `json:"context"`

	Context jobContext         `json:"-"`
	cancel  context.CancelFunc // cancels its handler
}

type jobContext struct {
	JobID        string            `json:"job_id"`
	Attempt      int64             `json:"attempt"`
	EnqueueTime  string            `json:"enqueue_time"`
	QueueName    string            `json:"queue_name"`
	Deadline     *string           `json:"deadline"`
	TraceContext map[string]string `json:"trace_context"`
	WorkerID     *string           `json:"worker_id"`
	DispatchID   string            `json:"dispatch_id"` // an extension, only for the witness and for crash
}

type cancelRequest struct {
	ProtocolVersion string  `json:"protocol_version"`
	JobID           string  `json:"job_id"`
	RequestID       *string `json:"request_id"`
	HardKill        bool    `json:"hard_kill"`
}

type outcome struct {
	JobID             string          `json:"job_id"`
	RequestID         string          `json:"request_id"`
	Status            string          `json:"status"`
	Result            json.RawMessage `json:"result"`
	Error             *fault          `json:"error"`
	RetryAfterSeconds *float64        `json:"retry_after_seconds"`
}

type fault struct {
	Message string `json:"message"`
	Type    string `json:"type"`
}

// text returns the outcome as an envelope. Marshalling cannot fail, because a
// result is either made here or copied from valid params.
func (o outcome) text() []byte {
	text, err := json.Marshal(map[string]any{"type": "response", "payload": o})
	if err != nil {
		panic(err)
	}
	return text
}

// parse decodes an envelope. An unknown key is an error, except in a job's
// context, where the protocol allows an orchestrator to add keys.
func parse(text []byte) (m message, err error) {
	var envelope struct {
		Type    string          `json:"type"`
		Payload json.RawMessage `json:"payload"`
	}
	if err := decodeStrict(text, &envelope); err != nil {
		return m, err
	}
	switch envelope.Type {
	case "request":
		m.request = new(request)
		if err = decodeStrict(envelope.Payload, m.request); err == nil {
			err = m.request.check()
		}
	case "cancel":
		m.cancel = new(cancelRequest)
		if err = decodeStrict(envelope.Payload, m.cancel); err == nil && (m.cancel.ProtocolVersion != "2" || m.cancel.JobID == "") {
			err = errors.New("cancel without a valid version or a job")
		}
	default:
		err = fmt.Errorf("unexpected message type %q", envelope.Type)
	}
	return m, err
}

// decodeStrict decodes one JSON value. Unknown keys and more data are errors.
func decodeStrict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("trailing data after the message")
	}
	return nil
}

// check returns an error if a request violates the contract.
func (q *request) check() error {
	if err := json.Unmarshal(q.RawContext, &q.Context); err != nil {
		return fmt.Errorf("context: %w", err)
	}
	c := &q.Context
	switch {
	case q.ProtocolVersion != "2":
		return fmt.Errorf("version %q", q.ProtocolVersion)
	case uuid.Validate(q.RequestID) != nil || uuid.Validate(q.JobID) != nil:
		return fmt.Errorf("request %q of job %q: both must be UUIDs", q.RequestID, q.JobID)
	case q.FunctionName == "":
		return errors.New("request without function")
	case len(q.Params) == 0 || q.Params[0] != '{':
		return errors.New("params are not an object")
	case c.JobID != q.JobID:
		return fmt.Errorf("context of job %q", c.JobID)
	case c.Attempt < 1:
		return fmt.Errorf("attempt %d", c.Attempt)
	case c.QueueName == "" || strings.Contains(c.QueueName, ":"):
		return fmt.Errorf("queue %q", c.QueueName)
	case c.WorkerID != nil && *c.WorkerID == "":
		return errors.New("empty worker id")
	}
	enqueued, err := parseUTC(c.EnqueueTime)
	if err != nil || c.Deadline == nil {
		return err
	}
	deadline, err := parseUTC(*c.Deadline)
	if err == nil && deadline.Before(enqueued) {
		err = fmt.Errorf("deadline %s is before %s", *c.Deadline, c.EnqueueTime)
	}
	return err
}

func parseUTC(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, text)
	if err == nil && !strings.HasSuffix(text, "Z") {
		err = fmt.Errorf("time %s is not UTC", text)
	}
	return t, err
}

// handlers maps function names to handlers with the behavior of those in the
// example runners.
var handlers = map[string]func(context.Context, *request) outcome{
	"echo": echo, "sleep": sleep, "fail": fail, "retry": retry, "crash": crash, "hang": hang, "big": large, "hash": hash,
}

type params struct {
	MS      int64    `json:"ms"`
	Message string   `json:"message"`
	Times   int64    `json:"times"`
	After   *float64 `json:"after"`
	Code    int      `json:"code"`
	Bytes   int      `json:"bytes"`
	Text    string   `json:"text"`
}

// parseParams returns the request's params. It panics if they are malformed:
// the scenarios send none that are.
func (q *request) parseParams() (p params) {
	p.Message, p.Code = "failed as asked", 1
	if err := json.Unmarshal(q.Params, &p); err != nil {
		panic(err)
	}
	return p
}

func echo(_ context.Context, q *request) outcome {
	return outcome{Status: "success", Result: q.Params}
}

func sleep(ctx context.Context, q *request) outcome {
	select {
	case <-time.After(time.Duration(q.parseParams().MS) * time.Millisecond):
		return echo(ctx, q)
	case <-ctx.Done():
		return outcome{Status: "error", Error: &fault{Message: "Job cancelled", Type: "cancelled"}}
	}
}

func fail(_ context.Context, q *request) outcome {
	return outcome{Status: "error", Error: &fault{Message: q.parseParams().Message, Type: "demo"}}
}

func retry(_ context.Context, q *request) outcome {
	p := q.parseParams()
	if q.Context.Attempt <= p.Times {
		return outcome{Status: "retry", RetryAfterSeconds: p.After}
	}
	return outcome{Status: "success", Result: fmt.Appendf(nil, `{"attempt":%d}`, q.Context.Attempt)}
}

// crash ends the process. With the param "times", it does so only in the first
// dispatches of the job.
func crash(ctx context.Context, q *request) outcome {
	p := q.parseParams()
	_, text, _ := strings.Cut(q.Context.DispatchID, "#")
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && p.Times > 0 && n > p.Times {
		return echo(ctx, q)
	}
	os.Exit(p.Code)
	return outcome{}
}

func hang(context.Context, *request) outcome {
	select {} // only the end of the process stops it
}

func large(_ context.Context, q *request) outcome {
	return outcome{Status: "success", Result: fmt.Appendf(nil, "%q", strings.Repeat("x", q.parseParams().Bytes))}
}

func hash(_ context.Context, q *request) outcome {
	text := q.parseParams().Text
	return outcome{Status: "success", Result: fmt.Appendf(nil, `{"bytes":%d,"sha256":"%x"}`, len(text), sha256.Sum256([]byte(text)))}
}

// lockJob reports a violation if the job is running in another process. The lock
// on the job's file is released with the process, or by release.
func (r *runner) lockJob(q *request) (release func()) {
	if r.witness == "" {
		return func() {}
	}
	f, err := os.OpenFile(filepath.Join(filepath.Dir(r.witness), q.JobID+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		r.reportViolation("job %s is already running and was sent again as %s: %v", q.JobID, q.RequestID, err)
		return func() {}
	}
	return func() { _ = f.Close() }
}
