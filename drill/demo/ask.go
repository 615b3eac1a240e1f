package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"yardmaster/cluster"
	"yardmaster/node"
)

func (y *yard) status(ctx context.Context, m *member) (s node.Status, err error) {
	err = ask(ctx, m, cluster.SubjectStatus, struct{}{}, &s)
	return s, err
}

// ask asks one node one thing.
func ask(ctx context.Context, m *member, subject string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	raw, err := m.client.Request(ctx, subject, body)
	if err != nil {
		return fmt.Errorf("ask %s: %w", m.name, err)
	}
	return json.Unmarshal(raw, answer)
}

// survivor is a node that was not killed, a different one each turn.
func (y *yard) survivor(turn int) *member {
	for i := range y.members {
		if m := y.members[(turn+i)%len(y.members)]; !m.dead.Load() {
			return m
		}
	}
	return y.members[0] // alone, and about to be started again
}

// askAny asks one node after the other until one answers or patience ends. A
// refusal that will not change ends it at once.
func (y *yard) askAny(ctx context.Context, subject string, question, answer any) error {
	turn := 0
	return y.until(ctx, "a node answers "+subject, func() error {
		turn++
		return ask(ctx, y.survivor(turn), subject, question, answer)
	})
}

// addQueues makes the queues, which workers want to find.
func (y *yard) addQueues(ctx context.Context) error {
	for _, name := range []string{queueOverhop, queueRRQ} {
		var made json.RawMessage
		err := y.until(ctx, "queue "+name+" is made", func() error {
			err := ask(ctx, y.members[0], cluster.SubjectAPI+".queue.add", map[string]any{"name": name}, &made)
			var refused *cluster.APIError
			if errors.As(err, &refused) && refused.Code == "409" { // an earlier try did it
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

// tally counts a yard's jobs by state.
type tally struct{ waiting, delayed, active, completed, failed int }

func (t tally) ended() int { return t.completed + t.failed }
func (t tally) open() int  { return t.waiting + t.delayed + t.active }

func (y *yard) tally(ctx context.Context, m *member) (t tally, err error) {
	var answer struct {
		Queues []struct {
			Name   string         `json:"name"`
			Counts map[string]int `json:"counts"`
		} `json:"queues"`
	}
	if err := ask(ctx, m, cluster.SubjectAPI+".queue.list", struct{}{}, &answer); err != nil {
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

// awaitEnds waits until the yard says that every job has ended. That some have
// not when patience ends is no error: it is what the report is for.
func (y *yard) awaitEnds(ctx context.Context, l *load) error {
	patience := 20*time.Second + time.Duration(l.jobs)*time.Second/500
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	turn := 0
	err := y.until(waiting, "all jobs have ended", func() error {
		turn++
		t, err := y.tally(waiting, y.survivor(turn))
		if err == nil && t.ended() < l.jobs {
			return fmt.Errorf("%d of %d have", t.ended(), l.jobs)
		}
		return err
	})
	if waiting.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}
