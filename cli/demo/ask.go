package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// status returns the status of one node.
func (c *demoCluster) status(ctx context.Context, m *member) (s api.Status, err error) {
	err = ask(ctx, m, api.SubjectStatus, struct{}{}, &s)
	return s, err
}

// ask sends one request to one node and decodes the answer.
func ask(ctx context.Context, m *member, subject string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	raw, err := m.client.Request(ctx, subject, body)
	if err != nil {
		return fmt.Errorf("ask %s: %w", m.Name, err)
	}
	return json.Unmarshal(raw, answer)
}

// survivor returns a node that is not dead, starting the search at turn. If all
// are dead, it returns the first, which is about to be restarted.
func (c *demoCluster) survivor(turn int) *member {
	for i := range c.members {
		if m := c.members[(turn+i)%len(c.members)]; !m.dead.Load() {
			return m
		}
	}
	return c.members[0]
}

// askAny sends a request to one node after the other until one answers, ctx ends or
// a process of the demo has exited.
func (c *demoCluster) askAny(ctx context.Context, subject string, request, answer any) error {
	turn := 0
	return c.Until(ctx, "a node answers "+subject, func() error {
		turn++
		return ask(ctx, c.survivor(turn), subject, request, answer)
	})
}

// addQueues creates the queues before workers subscribe to them.
func (c *demoCluster) addQueues(ctx context.Context) error {
	for _, name := range []string{queueOverhop, queueRRQ} {
		var made json.RawMessage
		err := c.Until(ctx, "queue "+name+" is created", func() error {
			err := ask(ctx, c.members[0], api.SubjectAPI+".queue.add", map[string]any{"name": name}, &made)
			var refused *api.Error
			if errors.As(err, &refused) && refused.Code == api.CodeConflict { // created by an earlier request
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// jobCounts counts the jobs of all queues by state.
type jobCounts struct{ waiting, delayed, active, completed, failed int }

func (t jobCounts) ended() int { return t.completed + t.failed }
func (t jobCounts) open() int  { return t.waiting + t.delayed + t.active }

// tally reads the job counts from one node.
func (c *demoCluster) tally(ctx context.Context, m *member) (t jobCounts, err error) {
	var answer struct {
		Queues []struct {
			Name   string         `json:"name"`
			Counts map[string]int `json:"counts"`
		} `json:"queues"`
	}
	if err := ask(ctx, m, api.SubjectAPI+".queue.list", struct{}{}, &answer); err != nil {
		return t, err
	}
	for _, q := range answer.Queues {
		t.waiting += q.Counts["waiting"]
		t.delayed += q.Counts["delayed"]
		t.active += q.Counts["active"]
		t.completed += q.Counts["completed"]
		t.failed += q.Counts["failed"]
	}
	return t, nil
}

// awaitEnds waits until all jobs of the load have ended. It returns nil after its
// time limit as well: the report shows what is missing.
func (c *demoCluster) awaitEnds(ctx context.Context, l *load) error {
	limit := 20*time.Second + time.Duration(l.jobs)*time.Second/500
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	turn := 0
	err := c.Until(waiting, "all jobs have ended", func() error {
		turn++
		t, err := c.tally(waiting, c.survivor(turn))
		if err == nil && t.ended() < l.jobs {
			return fmt.Errorf("%d of %d have ended", t.ended(), l.jobs)
		}
		return err
	})
	if waiting.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}
