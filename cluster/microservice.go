package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/crash"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// The NATS micro service protocol is implemented here, without the service type of
// nats.go. That type counts a request as answered when its handler returns, but
// these handlers reply later, so their errors and durations would be lost. Its
// metadata is also fixed.

// microService is a running service.
type microService struct {
	*Service
	node      string // also the instance's id
	started   time.Time
	endpoints []*activeEndpoint
}

// serveMicro answers PING, INFO and STATS requests, whether they are for all
// services, for this service, or for this instance.
func (s *Server) serveMicro(p *microService) ([]*nats.Subscription, error) {
	var subs []*nats.Subscription
	for verb, respond := range map[micro.Verb]func() any{micro.PingVerb: p.ping, micro.InfoVerb: p.info, micro.StatsVerb: p.stats} {
		handle := func(m *nats.Msg) {
			defer crash.Contain(s.local.Log, crash.NATS, nil)
			if subjects.IsReserved(m.Reply) {
				return
			}
			text, err := json.Marshal(respond())
			if err == nil {
				err = m.Respond(text)
			}
			if err != nil {
				s.local.Log.Debug("service discovery reply not sent", "subject", m.Subject, "err", err)
			}
		}
		all := micro.APIPrefix + "." + verb.String()
		for _, subject := range []string{all, all + "." + p.Name, all + "." + p.Name + "." + p.node} {
			sub, err := s.local.API.Conn.Subscribe(subject, handle)
			if err != nil {
				return subs, fmt.Errorf("subscribe to discovery of service %s: %w", p.Name, err)
			}
			subs = append(subs, sub)
		}
	}
	return subs, nil
}

// identity returns the part that all replies to discovery requests have in common.
func (p *microService) identity() micro.ServiceIdentity {
	metadata := map[string]string{}
	if p.Metadata != nil {
		maps.Copy(metadata, p.Metadata())
	}
	metadata["node"] = p.node
	return micro.ServiceIdentity{Name: p.Name, ID: p.node, Version: p.Version, Metadata: metadata}
}

// ping returns the reply to a PING request.
func (p *microService) ping() any {
	return micro.Ping{ServiceIdentity: p.identity(), Type: micro.PingResponseType}
}

// info returns the reply to an INFO request: the endpoints with their descriptions.
func (p *microService) info() any {
	info := micro.Info{
		ServiceIdentity: p.identity(), Type: micro.InfoResponseType, Description: p.Description,
		Endpoints: make([]micro.EndpointInfo, len(p.endpoints)),
	}
	for i, e := range p.endpoints {
		metadata := map[string]string{"description": e.Summary}
		maps.Copy(metadata, e.Metadata)
		info.Endpoints[i] = micro.EndpointInfo{Name: e.Name, Subject: e.Subject, Metadata: metadata}
	}
	return info
}

// stats returns the reply to a STATS request: the endpoints with their statistics.
func (p *microService) stats() any {
	stats := micro.Stats{
		ServiceIdentity: p.identity(), Type: micro.StatsResponseType, Started: p.started,
		Endpoints: make([]*micro.EndpointStats, len(p.endpoints)),
	}
	for i, e := range p.endpoints {
		stats.Endpoints[i] = e.stats()
	}
	return stats
}

// activeEndpoint is an endpoint that is being served, with its statistics.
type activeEndpoint struct {
	*Endpoint
	requests atomic.Int64

	mu           crash.Mutex
	responses    int64
	totalTime    time.Duration // sum over all replies
	errorsByCode map[string]uint64
	errors       int
	lastError    string
}

// record counts a reply to a request that arrived at the time began; apiErr is nil
// for a success.
func (e *activeEndpoint) record(began time.Time, apiErr *api.Error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.responses++
	e.totalTime += time.Since(began)
	if apiErr != nil {
		e.errors++
		e.errorsByCode[apiErr.Code]++
		e.lastError = apiErr.Code + ":" + apiErr.Text
	}
}

// stats returns the endpoint's statistics. Requests are counted when they arrive,
// everything else when they are answered.
func (e *activeEndpoint) stats() *micro.EndpointStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &micro.EndpointStats{
		Name: e.Name, Subject: e.Subject, NumRequests: int(e.requests.Load()), NumErrors: e.errors, LastError: e.lastError,
		ProcessingTime: e.totalTime, AverageProcessingTime: e.totalTime / time.Duration(max(e.responses, 1)),
	}
	// Marshaling numbers and strings cannot fail.
	s.Data, _ = json.Marshal(map[string]any{"answers": e.responses, "refused_by_code": e.errorsByCode})
	return s
}
