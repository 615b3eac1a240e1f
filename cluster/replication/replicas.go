package replication

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// Replica is one server's replica of a stream, or its membership in JetStream's
// meta group.
type Replica struct {
	Identity string `json:"identity"` // the server's name; "#" and its peer id if the name is no longer known
	Leader   bool   `json:"leader,omitempty"`
	Current  bool   `json:"current"`
	Offline  bool   `json:"offline,omitempty"`
	Lag      uint64 `json:"lag,omitempty"` // operations behind the leader
}

// Is reports whether the replica is on the server with this identity.
func (r *Replica) Is(identity string) bool {
	return r.Identity == identity || r.Identity == "#"+peerHash(identity)
}

// MetaReplicas returns the members of JetStream's meta group. Only the meta leader
// knows all of them and their progress: led reports whether that is this node's
// server; otherwise there is no list.
func (r *Replication) MetaReplicas() (replicas []Replica, led bool) {
	if !r.local.Config.Clustered() {
		return nil, true
	}
	info, err := r.local.NATS.Jsz(&server.JSzOptions{})
	if err != nil || info.Meta == nil || info.Meta.Leader != r.local.Config.Identity {
		return nil, false
	}
	replicas = append(replicas, Replica{Identity: info.Meta.Leader, Leader: true, Current: true})
	for _, peer := range info.Meta.Replicas {
		replicas = append(replicas, Replica{parsePeerName(peer.Name), false, peer.Current, peer.Offline || peer.Active > offlineAfter, peer.Lag})
	}
	return replicas, true
}

// StreamReplicas is the list of a stream's replicas.
type StreamReplicas struct {
	Stream   string    `json:"stream"`
	Want     int       `json:"want"`   // number of replicas that it should have
	Replicas []Replica `json:"copies"` // empty if its leader does not answer
}

// StreamReplicas returns the replicas of all streams of the yard's account,
// including users' own streams. A stream whose leader does not answer has none.
func (r *Replication) StreamReplicas(ctx context.Context) ([]StreamReplicas, error) {
	var all []StreamReplicas
	err := eachStreamPage(ctx, r.local.API, func(page *streamPage) {
		for _, info := range page.Streams {
			all = append(all, StreamReplicas{info.Config.Name, info.Config.Replicas, replicasOf(info.Cluster)})
		}
		for _, name := range page.Missing {
			all = append(all, StreamReplicas{Stream: name})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list the replicas of streams: %w", err)
	}
	byName := func(a, b StreamReplicas) int { return strings.Compare(a.Stream, b.Stream) }
	slices.SortStableFunc(all, byName)
	// A stream whose servers are all down is in both lists.
	return slices.CompactFunc(all, func(a, b StreamReplicas) bool { return a.Stream == b.Stream }), nil
}

// replicasOf returns the replicas in a stream's info, nil without a leader.
func replicasOf(g *jetstream.ClusterInfo) (replicas []Replica) {
	if g == nil || g.Leader == "" {
		return nil
	}
	replicas = append(replicas, Replica{Identity: g.Leader, Leader: true, Current: true})
	for _, r := range g.Replicas {
		replicas = append(replicas, Replica{parsePeerName(r.Name), false, r.Current, r.Offline || r.Active > offlineAfter, r.Lag})
	}
	return replicas
}

// streamPage is one page of JetStream's list of streams.
type streamPage struct {
	Error   *embedded.APIError `json:"error"`
	Total   int                `json:"total"`
	Offset  int                `json:"offset"`
	Limit   int                `json:"limit"`
	Streams []*jetstream.StreamInfo
	Missing []string `json:"missing"` // streams whose leaders do not answer
}

// eachStreamPage calls visit for each page of the list of streams.
func eachStreamPage(ctx context.Context, api *embedded.Inbox, visit func(*streamPage)) error {
	for seen, total := 0, 1; seen < total; {
		page, err := readStreamPage(ctx, api, seen)
		if err != nil {
			return err
		}
		visit(&page)
		seen, total = page.Offset+page.Limit, page.Total
	}
	return nil
}

// readStreamPage requests the page of the list that begins at offset. The client
// library's list silently omits streams whose leaders do not answer.
func readStreamPage(ctx context.Context, api *embedded.Inbox, offset int) (page streamPage, err error) {
	body := fmt.Appendf(nil, `{"offset":%d}`, offset)
	m, err := api.Request(ctx, &nats.Msg{Subject: subjects.APIStreamList, Data: body}, systemTimeout)
	if err != nil {
		return page, err
	}
	if err := json.Unmarshal(m.Data, &page); err != nil {
		return page, err
	}
	if page.Error != nil {
		return page, page.Error
	}
	if page.Limit <= 0 && page.Total > 0 {
		return page, errors.New("JetStream returned an empty page of its stream list")
	}
	return page, nil
}

// parsePeerName returns the identity in a peer's name. If the server has forgotten
// the name, it is "Server name unknown at this time (peerID: <hash>)", and the
// result is "#" and the hash.
func parsePeerName(name string) string {
	if _, hash, unknown := strings.Cut(name, "(peerID: "); unknown {
		return "#" + strings.TrimSuffix(hash, ")")
	}
	return name
}
