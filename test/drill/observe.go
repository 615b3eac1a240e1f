package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/test/drill/check"
)

// observer polls the status of every node over HTTP and keeps the answers for the
// checks.
type observer struct {
	done sync.WaitGroup

	mu      sync.Mutex
	entries []entry
}

// entry is an answer. It is written to a file for finding the cause of a failure.
type entry struct {
	Time      time.Time           `json:"time"`
	At        int64               `json:"at"` // by the host's clock
	Node      string              `json:"node"`
	Life      int                 `json:"life"`
	Readiness api.Readiness       `json:"readiness"`
	Authority api.AuthorityStatus `json:"authority"`
	Lanes     []api.LaneStatus    `json:"lanes"`
}

// observeInterval is the time between two polls of a node.
const observeInterval = 250 * time.Millisecond

// statusWait limits the wait for an answer.
const statusWait = 2 * time.Second

// observe polls one node in a goroutine until ctx ends.
func (w *observer) observe(ctx context.Context, n *Node) {
	w.done.Go(func() {
		client := &http.Client{Timeout: statusWait, Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: time.Second}).DialContext}}
		defer client.CloseIdleConnections()
		var l lives
		for backoff.Sleep(ctx, observeInterval) == nil {
			asked := time.Now()
			code, text, err := n.callHTTP(ctx, client, "GET /v1/status", nil)
			var s api.Status
			if err != nil || code != http.StatusOK || json.Unmarshal(text, &s) != nil {
				continue // no answer, no claim
			}
			w.record(n, l.count(asked, s.Uptime), &s)
		}
	})
}

// lives counts the starts of a node by its reported uptimes. A restarted node that
// is not polled for a while may report a longer uptime than before its restart.
type lives struct {
	life   int
	uptime int64     // last reported, in seconds
	began  time.Time // earliest begin of this life computed so far
}

// mayDiffer is the maximum difference between two computed begins of the same life:
// a second by which the uptime is truncated, and the longest wait for an answer.
const mayDiffer = statusWait + time.Second

// count returns the number of the life in which a node polled at asked reported the
// uptime, in seconds.
func (l *lives) count(asked time.Time, uptime int64) int {
	began := asked.Add(-time.Duration(uptime) * time.Second)
	switch {
	case l.began.IsZero():
		l.began = began
	case uptime < l.uptime, began.Sub(l.began) > mayDiffer:
		l.life++
		l.began = began
	case began.Before(l.began):
		l.began = began
	}
	l.uptime = uptime
	return l.life
}

// record stores an answer.
func (w *observer) record(n *Node, life int, s *api.Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.entries = append(w.entries, entry{time.Now(), HostClock(), n.Name, life, s.Readiness, s.Authority, s.Lanes})
}

// samples returns the readiness in all answers.
func (w *observer) samples() (samples []check.Sample) {
	for _, e := range w.entries {
		samples = append(samples, check.Sample{Node: e.Node, At: e.At, Ready: e.Readiness.Ready && e.Readiness.Dispatching, Reasons: strings.Join(e.Readiness.Reasons, "; ")})
	}
	return samples
}

// views returns the authority in all answers.
func (w *observer) views() (views []check.View) {
	for _, e := range w.entries {
		views = append(views, check.View{Node: e.Node, Life: e.Life, Owner: e.Authority.Owner, Epoch: e.Authority.Epoch, At: e.At})
	}
	return views
}

// writeFile writes all statuses to a file, one JSON object per line.
func (w *observer) writeFile(file string) error {
	var lines bytes.Buffer
	out := json.NewEncoder(&lines)
	for _, e := range w.entries {
		if err := out.Encode(&e); err != nil {
			return err
		}
	}
	return os.WriteFile(file, lines.Bytes(), 0o600)
}

// callHTTP sends a request, such as "GET /v1/status", to the node's HTTP API, with the
// token of all nodes and more headers, given as names and values in turn. It returns the
// status code and the body of the answer.
func (n *Node) callHTTP(ctx context.Context, client *http.Client, methodAndPath string, body []byte, headers ...string) (code int, answer []byte, err error) {
	response, err := n.sendHTTP(ctx, client, methodAndPath, body, headers...)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// sendHTTP is like callHTTP and returns the response, whose body the caller closes.
func (n *Node) sendHTTP(ctx context.Context, client *http.Client, methodAndPath string, body []byte, headers ...string) (*http.Response, error) {
	method, path, _ := strings.Cut(methodAndPath, " ")
	request, err := http.NewRequestWithContext(ctx, method, "http://"+n.HTTP+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+Token)
	request.Header.Set("Content-Type", "application/json")
	for header := range slices.Chunk(headers, 2) {
		request.Header.Set(header[0], header[1])
	}
	return client.Do(request)
}

// contention is a set of writers that create and remove the same few queues
// concurrently, each through a different node.
type contention struct {
	done sync.WaitGroup

	mu      sync.Mutex
	changes []check.Operation
}

const (
	contentionQueues   = 4
	contentionInterval = 300 * time.Millisecond
)

// runWriter runs one writer in a goroutine until ctx ends. intN returns a random
// number below its argument.
func (c *contention) runWriter(ctx context.Context, writer int, n *Node, intN func(int) int) {
	c.done.Go(func() {
		// Each change uses a new connection: on a reused one net/http repeats
		// idempotent requests after a failure, and a repeated removal would be
		// refused although the first took effect.
		client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: time.Second}).DialContext}}
		for backoff.Sleep(ctx, contentionInterval) == nil {
			ch := check.Operation{Writer: writer, Name: fmt.Sprintf("contest-%d", intN(contentionQueues)), Create: intN(2) == 0}
			ch.From = HostClock()
			ch.Answer = change(ctx, client, n, ch.Name, ch.Create)
			ch.To = HostClock()
			c.mu.Lock()
			c.changes = append(c.changes, ch)
			c.mu.Unlock()
		}
	})
}

// change creates or removes a queue through one node.
func change(ctx context.Context, client *http.Client, n *Node, name string, create bool) check.Answer {
	method, body, refused := http.MethodDelete, "", http.StatusNotFound
	if create {
		method, body, refused = http.MethodPut, "{}", http.StatusConflict
	}
	code, _, _ := n.callHTTP(context.WithoutCancel(ctx), client, method+" /v1/queues/"+name, []byte(body)) // code 0: no answer
	switch {
	case code/100 == 2:
		return check.Done
	case code == refused:
		return check.Refused
	}
	return check.Unknown
}
