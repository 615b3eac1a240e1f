package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"yardmaster/drill/check"
	"yardmaster/node"
)

// watch asks every node all the time how it stands, by HTTP, and keeps what it
// says for the judge.
type watch struct {
	done sync.WaitGroup

	mu    sync.Mutex
	looks []check.Look
	views []check.View
	diary []entry
}

// entry is what of an answer helps to see afterwards why nothing moved.
type entry struct {
	Time      time.Time            `json:"time"`
	Node      string               `json:"node"`
	Readiness node.ReadinessStatus `json:"readiness"`
	Authority node.AuthorityStatus `json:"authority"`
	Lanes     []node.LaneStatus    `json:"lanes"`
}

// lookEvery is the time between two looks at a node.
const lookEvery = 250 * time.Millisecond

func (w *watch) follow(ctx context.Context, n *Node) {
	w.done.Go(func() {
		client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: time.Second}).DialContext}}
		defer client.CloseIdleConnections()
		life, lived := 0, int64(0)
		for pause(ctx, lookEvery) == nil {
			s, err := httpStatus(ctx, client, n)
			if err != nil {
				continue // a node that does not answer claims nothing
			}
			if s.Uptime < lived {
				life++
			}
			lived = s.Uptime
			w.note(n, life, &s)
		}
	})
}

func (w *watch) note(n *Node, life int, s *node.Status) {
	at := Clock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks = append(w.looks, check.Look{Node: n.Name, At: at, Ready: s.Readiness.Ready && s.Readiness.Dispatching, Reasons: strings.Join(s.Readiness.Reasons, "; ")})
	w.diary = append(w.diary, entry{time.Now(), n.Name, s.Readiness, s.Authority, s.Lanes})
	w.views = append(w.views, check.View{Node: n.Name, Life: life, Owner: s.Authority.Owner, Epoch: s.Authority.Epoch, At: at})
}

// keep writes what all nodes said into a file, a line for each answer.
func (w *watch) keep(file string) error {
	var lines bytes.Buffer
	out := json.NewEncoder(&lines)
	for _, e := range w.diary {
		if err := out.Encode(&e); err != nil {
			return err
		}
	}
	return os.WriteFile(file, lines.Bytes(), 0o600)
}

func httpStatus(ctx context.Context, client *http.Client, n *Node) (s node.Status, err error) {
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, n.HTTP+"/v1/status", nil)
	if err != nil {
		return s, err
	}
	ask.Header.Set("Authorization", "Bearer "+Token)
	answer, err := client.Do(ask)
	if err != nil {
		return s, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return s, errors.New(answer.Status)
	}
	return s, json.NewDecoder(answer.Body).Decode(&s)
}

// contest is writers who make and remove the same few queues, each through a
// node of its own.
type contest struct {
	done sync.WaitGroup

	mu      sync.Mutex
	changes []check.Change
}

const (
	contestNames = 4
	contestPace  = 300 * time.Millisecond
)

func (c *contest) write(ctx context.Context, writer int, n *Node, dice func(int) int) {
	c.done.Go(func() {
		// Every change has a connection of its own: over one that stood, Go
		// repeats by itself what can be repeated, and a removal would be refused
		// because it was carried out.
		client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: time.Second}).DialContext}}
		for pause(ctx, contestPace) == nil {
			ch := check.Change{Writer: writer, Name: fmt.Sprintf("contest-%d", dice(contestNames)), Make: dice(2) == 0}
			ch.From = Clock()
			ch.Answer = change(ctx, client, n, ch.Name, ch.Make)
			ch.Til = Clock()
			c.mu.Lock()
			c.changes = append(c.changes, ch)
			c.mu.Unlock()
		}
	})
}

func change(ctx context.Context, client *http.Client, n *Node, name string, create bool) check.Answer {
	method, body := http.MethodDelete, ""
	if create {
		method, body = http.MethodPut, "{}"
	}
	ask, err := http.NewRequestWithContext(context.WithoutCancel(ctx), method, n.HTTP+"/v1/queues/"+name, strings.NewReader(body))
	if err != nil {
		return check.Unknown
	}
	ask.Header.Set("Authorization", "Bearer "+Token)
	ask.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(ask)
	if err != nil {
		return check.Unknown
	}
	answer.Body.Close()
	switch {
	case answer.StatusCode/100 == 2:
		return check.Done
	case create && answer.StatusCode == http.StatusConflict, !create && answer.StatusCode == http.StatusNotFound:
		return check.Refused
	}
	return check.Unknown
}
