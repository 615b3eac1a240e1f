package cluster

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
)

// Copy is one server's part in a group: JetStream's own, or a stream's.
type Copy struct {
	Identity string `json:"identity"` // the server's; "#" and a hash of it if its name is not known any more
	Leader   bool   `json:"leader,omitempty"`
	Current  bool   `json:"current"`
	Offline  bool   `json:"offline,omitempty"`
	Lag      uint64 `json:"lag,omitempty"` // operations behind the leader
}

// Is tells whether it is this server's.
func (c *Copy) Is(identity string) bool {
	return c.Identity == identity || c.Identity == "#"+peerHash(identity)
}

// Meta lists the servers that decide which streams there are. Only their
// leader knows all of them and how far each is: led tells whether that is this
// node's server; else there is no list.
func (c *Cluster) Meta() (copies []Copy, led bool) {
	if !c.cfg.clustered() {
		return nil, true
	}
	info, err := c.srv.Jsz(&server.JSzOptions{})
	if err != nil || info.Meta == nil || info.Meta.Leader != c.cfg.Identity {
		return nil, false
	}
	copies = append(copies, Copy{Identity: info.Meta.Leader, Leader: true, Current: true})
	for _, r := range info.Meta.Replicas {
		copies = append(copies, Copy{identityOf(r.Name), false, r.Current, r.Offline || r.Active > offlineAfter, r.Lag})
	}
	return copies, true
}

// StreamCopies is where a stream lies.
type StreamCopies struct {
	Stream string `json:"stream"`
	Want   int    `json:"want"`   // copies
	Copies []Copy `json:"copies"` // empty if it has no leader that answers
}

// Streams tells of all streams of the yard's account, users' own too, where
// they lie. One whose leader does not answer has no copies.
func (c *Cluster) Streams(ctx context.Context) ([]StreamCopies, error) {
	var all []StreamCopies
	err := c.eachPage(ctx, func(page *streamPage) {
		for _, info := range page.Streams {
			all = append(all, StreamCopies{info.Config.Name, info.Config.Replicas, copiesOf(info.Cluster)})
		}
		for _, name := range page.Missing {
			all = append(all, StreamCopies{Stream: name})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("ask where the streams lie: %w", err)
	}
	byName := func(a, b StreamCopies) int { return strings.Compare(a.Stream, b.Stream) }
	slices.SortStableFunc(all, byName)
	// One all of whose servers are down stands in both lists.
	return slices.CompactFunc(all, func(a, b StreamCopies) bool { return a.Stream == b.Stream }), nil
}

func copiesOf(g *jetstream.ClusterInfo) (copies []Copy) {
	if g == nil || g.Leader == "" {
		return nil
	}
	copies = append(copies, Copy{Identity: g.Leader, Leader: true, Current: true})
	for _, r := range g.Replicas {
		copies = append(copies, Copy{identityOf(r.Name), false, r.Current, r.Offline || r.Active > offlineAfter, r.Lag})
	}
	return copies
}

// streamPage is a part of JetStream's list of streams.
type streamPage struct {
	Error   *apiError `json:"error"`
	Total   int       `json:"total"`
	Offset  int       `json:"offset"`
	Limit   int       `json:"limit"`
	Streams []*jetstream.StreamInfo
	Missing []string `json:"missing"` // their leaders do not answer
}

// eachPage visits the whole list.
func (c *Cluster) eachPage(ctx context.Context, visit func(*streamPage)) error {
	for seen, total := 0, 1; seen < total; {
		page, err := c.streamPage(ctx, seen)
		if err != nil {
			return err
		}
		visit(&page)
		seen, total = page.Offset+page.Limit, page.Total
	}
	return nil
}

// streamPage asks for the list from an offset on. The client library's own list
// leaves out without a word what is missing.
func (c *Cluster) streamPage(ctx context.Context, offset int) (page streamPage, err error) {
	body := fmt.Appendf(nil, `{"offset":%d}`, offset)
	m, err := c.api.ask(ctx, &nats.Msg{Subject: apiStreamList, Data: body}, systemAnswer)
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
		return page, errors.New("JetStream answers with pages of nothing")
	}
	return page, nil
}

// identityOf reads a name that the server may have forgotten; then it says
// "Server name unknown at this time (peerID: <hash>)".
func identityOf(name string) string {
	if _, hash, unknown := strings.Cut(name, "(peerID: "); unknown {
		return "#" + strings.TrimSuffix(hash, ")")
	}
	return name
}
