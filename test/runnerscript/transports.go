package runnerscript

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// maxNATSRecord is the size in bytes up to which records are enqueued over NATS.
// Longer ones are enqueued over HTTP.
const maxNATSRecord = 1 << 20

// transportTimeout limits one request over HTTP or Overhop.
const transportTimeout = 20 * time.Second

// enqueueHTTP enqueues a record over HTTP at any node that answers.
func (run *scriptRun) enqueueHTTP(queue string, record []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(run.ctx, transportTimeout)
	defer cancel()
	raw, err := run.env.Request(ctx, api.SubjectStatus, []byte("{}"))
	if err != nil {
		return nil, err
	}
	var status struct{ HTTP string }
	if err := json.Unmarshal(raw, &status); err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+status.HTTP+"/v1/queues/"+queue+"/jobs", bytes.NewReader(record))
	if err != nil {
		return nil, err
	}
	r.Close = true
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode == http.StatusAccepted {
		return text, err
	}
	var refusal struct{ Error struct{ Message string } }
	if err := json.Unmarshal(text, &refusal); err != nil {
		return nil, fmt.Errorf("%s: %.200q", answer.Status, text)
	}
	return nil, &api.Error{Code: strconv.Itoa(answer.StatusCode), Text: refusal.Error.Message}
}

// fullResult reads, over Overhop, a text result that is too long for an answer in
// JSON. It repeats the request until run.ctx ends.
func (run *scriptRun) fullResult(e *scriptJob) (string, error) {
	var err error
	for {
		var text string
		if text, err = run.result(e.jid); err == nil {
			return text, nil
		}
		if run.pause() != nil {
			return "", err
		}
	}
}

// result reads the text result of a job over a new Overhop connection.
func (run *scriptRun) result(jid string) (string, error) {
	ctx, cancel := context.WithTimeout(run.ctx, transportTimeout)
	defer cancel()
	c, err := overhop.Dial(ctx, run.env.Overhop(), overhop.Options{})
	if err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	record, err := c.Job(ctx, jid)
	_ = c.Close()
	<-ended
	if err != nil {
		return "", err
	}
	text, ok := record.Get("result").Str()
	if !ok {
		return "", fmt.Errorf("result of %s is not a text", jid)
	}
	return text, nil
}
