package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
)

// player plays one script.
type player struct {
	ctx    context.Context
	world  World
	script Script
	jobs   map[string]*entry
	out    strings.Builder

	// Nothing dies between a script's wait for a job to run and its cancel: a
	// job that ran no more would end as one that never did.
	calm    *sync.WaitGroup // scripts that still have cancels to come
	calmed  func()          // this one has not
	cancels int             // still to come
}

// entry is a job that the script has enqueued.
type entry struct {
	id     job.ID
	jid    string    // to Overhop
	past   uint32    // dispatches it had when it was last requeued
	due    time.Time // zero: at once
	losses uint32    // at its end
}

// play gives the script with what comes out now.
func (p *player) play() (string, error) {
	if p.cancels == 0 {
		p.calmed()
	}
	for line := range strings.Lines(p.script.Text) {
		line = strings.TrimRight(line, "\n")
		if line != "" && strings.IndexByte("#>?", line[0]) < 0 {
			continue // what came out once
		}
		fmt.Fprintln(&p.out, line)
		var err error
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '>':
			err = p.do(strings.TrimSpace(line[1:]))
		default:
			err = p.end(strings.Fields(line[1:]))
		}
		if err != nil {
			return p.out.String(), fmt.Errorf("%s: %s: %w", p.script.Name, line, err)
		}
	}
	return p.out.String(), nil
}

func (p *player) do(line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "job":
		return p.enqueue(rest)
	case "queue", "pause", "resume":
		return p.queue(verb, strings.Fields(rest))
	case "inturn":
		return p.inTurn(strings.Fields(rest))
	case "atonce":
		return p.atOnce(strings.Fields(rest))
	case "now":
		p.calmed()
		if p.calm.Wait(); p.world.Now == nil {
			return nil
		}
		var ids []job.ID
		for _, e := range p.jobs {
			ids = append(ids, e.id)
		}
		return p.world.Now(p.ctx, ids)
	}
	e := p.jobs[rest]
	if e == nil {
		return fmt.Errorf("no job is called %q", rest)
	}
	switch verb {
	case "active":
		return p.await(e, "active")
	case "waiting":
		return p.await(e, "waiting", "delayed")
	case "cancel":
		defer p.cancelled()
		return p.told(p.ask("yard.api.v1.job.cancel", map[string]any{"id": e.id.String()}, nil))
	case "requeue":
		return p.requeue(e)
	}
	return fmt.Errorf("nobody knows how to %s", verb)
}

func (p *player) cancelled() {
	if p.cancels--; p.cancels == 0 {
		p.calmed()
	}
}

// queue makes a queue, <name> [<limit>], pauses one or resumes it. What was done
// already, when an answer got lost, is done.
func (p *player) queue(verb string, words []string) error {
	if len(words) == 0 {
		return errors.New("which queue?")
	}
	question := map[string]any{"name": words[0]}
	if verb == "queue" {
		verb = "add"
		if len(words) == 2 {
			limit, err := strconv.Atoi(words[1])
			if err != nil {
				return err
			}
			question["concurrency_limit"] = limit
		}
	}
	err := p.ask(cluster.SubjectAPI+".queue."+verb, question, nil)
	if refused := (*cluster.APIError)(nil); errors.As(err, &refused) && refused.Code == "409" {
		return nil
	}
	return err
}

var many = regexp.MustCompile(`"([^"]+)\*([0-9]+)"`)

// enqueue: <name> <queue> [delay=…] <record>.
func (p *player) enqueue(line string) error {
	name, line, _ := strings.Cut(line, " ")
	queue, line, _ := strings.Cut(line, " ")
	var due time.Time
	if rest, ok := strings.CutPrefix(line, "delay="); ok {
		text, record, _ := strings.Cut(rest, " ")
		delay, err := time.ParseDuration(text)
		if err != nil {
			return err
		}
		line, due = record, time.Now().Add(delay)
	}
	line = many.ReplaceAllStringFunc(line, func(s string) string {
		found := many.FindStringSubmatch(s)
		n, _ := strconv.Atoi(found[2])
		return `"` + strings.Repeat(found[1], n) + `"`
	})
	var spec map[string]json.RawMessage
	if err := json.Unmarshal([]byte(line), &spec); err != nil {
		return err
	}
	key := p.script.Name + "/" + name
	spec["id"], _ = json.Marshal(key)
	if !due.IsZero() {
		spec["run_at"], _ = json.Marshal(due)
	}
	id, err := job.KeyID(queue, key)
	if err != nil {
		return err
	}
	var accepted struct{ ID job.ID }
	if err := p.ask(cluster.SubjectEnqueue+"."+queue, spec, &accepted); err != nil {
		return p.told(err)
	}
	p.jobs[name] = &entry{id: accepted.ID, jid: queue + ":" + accepted.ID.String(), due: due}
	if accepted.ID == id {
		return nil
	}
	for other, e := range p.jobs {
		if other != name && e.id == accepted.ID {
			fmt.Fprintf(&p.out, "it is %s\n", other)
			return nil
		}
	}
	return fmt.Errorf("accepted as %s, which is no job of this script", accepted.ID)
}

// ask repeats a question until it is answered or refused.
func (p *player) ask(subject string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	for {
		var raw []byte
		if queue, ok := strings.CutPrefix(subject, cluster.SubjectEnqueue+"."); ok && len(body) > longestMessage {
			raw, err = p.post(queue, body)
		} else {
			raw, err = p.world.Ask(p.ctx, subject, body)
		}
		if err == nil {
			if answer == nil {
				return nil
			}
			return json.Unmarshal(raw, answer)
		}
		var refused *cluster.APIError
		if errors.As(err, &refused) && refused.Code[0] == '4' {
			return refused
		}
		if p.pause() != nil {
			return err
		}
	}
}

// pause lies between two looks.
func (p *player) pause() error {
	t := time.NewTimer(20 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

// times are what differs between two refusals.
var times = regexp.MustCompile(`\b[0-9]+(h|m|s|ms)[0-9.hms]*\b`)

// told writes a refusal down; it is what the script is about.
func (p *player) told(err error) error {
	var refused *cluster.APIError
	if errors.As(err, &refused) {
		fmt.Fprintf(&p.out, "refused with %s: %s\n", refused.Code, times.ReplaceAllString(refused.Text, "…"))
		return nil
	}
	return err
}

func (p *player) await(e *entry, states ...string) error {
	for {
		v, err := p.show(e)
		if err != nil {
			return err
		}
		for _, s := range states {
			if v.State == s {
				return nil
			}
		}
		if v.State == "completed" || v.State == "failed" {
			return fmt.Errorf("it is %s already: %s", v.State, v.Reason)
		}
		if err := p.pause(); err != nil {
			return fmt.Errorf("it is %s: %w", v.State, err)
		}
	}
}

// requeue gives a dead letter's job a new life. Asked twice, the second answer
// is that it was done.
func (p *player) requeue(e *entry) error {
	v, err := p.show(e)
	if err != nil {
		return err
	}
	e.past = v.Dispatches
	for {
		var answer struct {
			Items []struct{ Result, Error string }
		}
		if err := p.ask("yard.api.v1.dlq.requeue", map[string]any{"jobs": []job.ID{e.id}}, &answer); err != nil {
			return p.told(err)
		}
		if n := len(answer.Items); n == 1 && answer.Items[0].Result != "failed" {
			return nil
		}
		v, err := p.show(e)
		if err != nil || v.Dispatches > e.past || v.State != "failed" {
			return err // an answer got lost
		}
		if p.pause() != nil {
			return fmt.Errorf("requeue gives %+v", answer)
		}
	}
}
