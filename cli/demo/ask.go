package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// ask sends one request to one node and decodes the answer.
func ask[T any](ctx context.Context, m *member, subject string, request any) (answer T, err error) {
	body, err := json.Marshal(request)
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	raw, err := m.client.Request(ctx, subject, body)
	if err != nil {
		return answer, fmt.Errorf("ask %s: %w", m.Name, err)
	}
	err = json.Unmarshal(raw, &answer)
	return answer, err
}

// askStatus returns the status of one node.
func askStatus(ctx context.Context, m *member) (api.Status, error) {
	return ask[api.Status](ctx, m, api.SubjectStatus, struct{}{})
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

// addQueues creates the queues before workers subscribe to them.
func (c *demoCluster) addQueues(ctx context.Context) error {
	for _, name := range []string{queueOverhop, queueRRQ} {
		err := c.Until(ctx, "queue "+name+" is created", func() error {
			_, err := ask[json.RawMessage](ctx, c.members[0], api.Subject("queue-add"), map[string]any{"name": name})
			if refused, ok := errors.AsType[*api.Error](err); ok && refused.Code == api.CodeConflict { // created by an earlier request
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

// tally returns the number of jobs in each state, and under "ended" and "open",
// as one node counts them.
func tally(ctx context.Context, m *member) (map[string]int, error) {
	list, err := ask[api.QueueList](ctx, m, api.Subject("queue-list"), struct{}{})
	t := make(map[string]int)
	for _, q := range list.Queues {
		for state, n := range q.Counts {
			t[state] += n
		}
	}
	t["ended"] = t["completed"] + t["failed"]
	t["open"] = t["waiting"] + t["delayed"] + t["active"]
	return t, err
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
		t, err := tally(waiting, c.survivor(turn))
		if err == nil && t["ended"] < l.jobs {
			return fmt.Errorf("%d of %d have ended", t["ended"], l.jobs)
		}
		return err
	})
	if waiting.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}
