package sequential

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

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

func (q *request) check() error {
	if err := json.Unmarshal(q.RawContext, &q.Context); err != nil {
		return fmt.Errorf("context: %w", err)
	}
	c := &q.Context
	switch {
	case q.ProtocolVersion != "2":
		return fmt.Errorf("version %q", q.ProtocolVersion)
	case q.RequestID == "" || q.JobID == "" || q.FunctionName == "":
		return errors.New("request without id, job or function")
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
