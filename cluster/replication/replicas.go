package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
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
// has a list of all of them and their progress: led reports whether this node's server
// is the meta leader; otherwise replicas is nil. A node that runs alone has no group.
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
		offline := peer.Offline || peer.Active > offlineAfter
		replicas = append(replicas, Replica{Identity: parsePeerName(peer.Name), Current: peer.Current, Offline: offline, Lag: peer.Lag})
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
	slices.SortStableFunc(all, func(a, b StreamReplicas) int { return strings.Compare(a.Stream, b.Stream) })
	// A stream whose servers are all down is in both lists.
	return slices.CompactFunc(all, func(a, b StreamReplicas) bool { return a.Stream == b.Stream }), nil
}

// replicasOf returns the replicas in a stream's info, nil without a leader.
func replicasOf(info *jetstream.ClusterInfo) (replicas []Replica) {
	if info == nil || info.Leader == "" {
		return nil
	}
	replicas = append(replicas, Replica{Identity: info.Leader, Leader: true, Current: true})
	for _, peer := range info.Replicas {
		offline := peer.Offline || peer.Active > offlineAfter
		replicas = append(replicas, Replica{Identity: parsePeerName(peer.Name), Current: peer.Current, Offline: offline, Lag: peer.Lag})
	}
	return replicas
}

// streamPage is one page of JetStream's list of streams.
type streamPage struct {
	embedded.APIReply
	Total   int                     `json:"total"`
	Offset  int                     `json:"offset"`
	Limit   int                     `json:"limit"`
	Streams []*jetstream.StreamInfo `json:"streams"`
	Missing []string                `json:"missing"` // streams whose leaders do not answer
}

// eachStreamPage calls visit for each page of the list of streams. It does not use the
// client library's list, which silently omits streams whose leaders do not answer.
func eachStreamPage(ctx context.Context, api *embedded.Inbox, visit func(*streamPage)) error {
	for offset, total := 0, 1; offset < total; {
		var page streamPage
		body := fmt.Appendf(nil, `{"offset":%d}`, offset)
		if err := api.RequestAPI(ctx, subjects.APIStreamList, body, systemTimeout, &page); err != nil {
			return err
		}
		if page.Limit <= 0 && page.Total > 0 {
			return errors.New("JetStream returned an empty page of its stream list")
		}
		visit(&page)
		offset, total = page.Offset+page.Limit, page.Total
	}
	return nil
}

// parsePeerName returns the identity in the name that JetStream reports for a server.
// For a server whose name JetStream has forgotten it reports "Server name unknown at
// this time (peerID: <hash>)"; then the identity is "#" and the hash.
func parsePeerName(name string) string {
	if _, hash, unknown := strings.Cut(name, "(peerID: "); unknown {
		return "#" + strings.TrimSuffix(hash, ")")
	}
	return name
}
