package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// The micro service protocol is spoken here and not by nats.go, whose service
// takes a request for answered when its handler returns. Ours answer later, so
// their errors and times would not be counted; and its metadata stands still.

// presence is a service as the micro service protocol shows it.
type presence struct {
	*Service
	node  string // the instance's id, too
	began time.Time
	open  []*served
}

// present answers PING, INFO and STATS to all, to those who name the service,
// and to those who name this instance of it.
func (c *Cluster) present(p *presence) ([]*nats.Subscription, error) {
	var subs []*nats.Subscription
	for verb, say := range map[micro.Verb]func() any{micro.PingVerb: p.ping, micro.InfoVerb: p.info, micro.StatsVerb: p.stats} {
		handle := func(m *nats.Msg) {
			if ownReply(m.Reply) {
				return
			}
			text, err := json.Marshal(say())
			if err == nil {
				err = m.Respond(text)
			}
			if err != nil {
				c.log.Debug("service does not present itself", "subject", m.Subject, "error", err)
			}
		}
		all := micro.APIPrefix + "." + verb.String()
		for _, subject := range []string{all, all + "." + p.Name, all + "." + p.Name + "." + p.node} {
			sub, err := c.api.nc.Subscribe(subject, handle)
			if err != nil {
				return subs, fmt.Errorf("present service %s: %w", p.Name, err)
			}
			subs = append(subs, sub)
		}
	}
	return subs, nil
}

func (p *presence) identity() micro.ServiceIdentity {
	meta := map[string]string{}
	if p.Metadata != nil {
		maps.Copy(meta, p.Metadata())
	}
	meta["node"] = p.node
	return micro.ServiceIdentity{Name: p.Name, ID: p.node, Version: p.Version, Metadata: meta}
}

func (p *presence) ping() any {
	return micro.Ping{ServiceIdentity: p.identity(), Type: micro.PingResponseType}
}

func (p *presence) info() any {
	info := micro.Info{
		ServiceIdentity: p.identity(), Type: micro.InfoResponseType, Description: p.Description,
		Endpoints: make([]micro.EndpointInfo, len(p.open)),
	}
	for i, e := range p.open {
		meta := map[string]string{"description": e.Description}
		maps.Copy(meta, e.Metadata)
		info.Endpoints[i] = micro.EndpointInfo{Name: e.Name, Subject: e.Subject, Metadata: meta}
	}
	return info
}

func (p *presence) stats() any {
	stats := micro.Stats{
		ServiceIdentity: p.identity(), Type: micro.StatsResponseType, Started: p.began,
		Endpoints: make([]*micro.EndpointStats, len(p.open)),
	}
	for i, e := range p.open {
		stats.Endpoints[i] = e.stats()
	}
	return stats
}

// served is an endpoint that is open, and what was counted there.
type served struct {
	*Endpoint
	asked atomic.Int64

	mu        sync.Mutex
	answers   int64
	took      time.Duration // all answers together
	codes     map[string]uint64
	refused   int
	lastError string
}

func (e *served) answered(began time.Time, refusal *APIError) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answers++
	e.took += time.Since(began)
	if refusal != nil {
		e.refused++
		e.codes[refusal.Code]++
		e.lastError = refusal.Code + ":" + refusal.Text
	}
}

// stats counts requests as they come and everything else as they are answered.
func (e *served) stats() *micro.EndpointStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &micro.EndpointStats{
		Name: e.Name, Subject: e.Subject, NumRequests: int(e.asked.Load()), NumErrors: e.refused, LastError: e.lastError,
		ProcessingTime: e.took, AverageProcessingTime: e.took / time.Duration(max(e.answers, 1)),
	}
	// Numbers and texts always become JSON.
	s.Data, _ = json.Marshal(map[string]any{"answers": e.answers, "refused_by_code": e.codes})
	return s
}
