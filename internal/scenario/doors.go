package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"yardmaster/cluster"
	"yardmaster/edge/overhop"
)

// longestMessage is the longest record that goes in over NATS, in bytes; longer
// ones go in over HTTP.
const longestMessage = 1 << 20

// doorTime is how long a node may take for one large record.
const doorTime = 20 * time.Second

// post enqueues over HTTP, at any node.
func (p *player) post(queue string, record []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(p.ctx, doorTime)
	defer cancel()
	raw, err := p.world.Ask(ctx, cluster.SubjectStatus, []byte("{}"))
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
	return nil, &cluster.APIError{Code: strconv.Itoa(answer.StatusCode), Text: refusal.Error.Message}
}

// whole reads a text that is too long for an answer in JSON: Overhop shows it.
func (p *player) whole(e *entry) (string, error) {
	var err error
	for {
		var text string
		if text, err = p.result(e.jid); err == nil {
			return text, nil
		}
		if p.pause() != nil {
			return "", err
		}
	}
}

func (p *player) result(jid string) (string, error) {
	ctx, cancel := context.WithTimeout(p.ctx, doorTime)
	defer cancel()
	c, err := overhop.Dial(ctx, p.world.Overhop(), overhop.Options{})
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
		return "", fmt.Errorf("result of %s is no text", jid)
	}
	return text, nil
}
