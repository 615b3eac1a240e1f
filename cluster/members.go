package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// What the system account is asked for, by this process alone.
const (
	apiEvacuate = "$JS.API.SERVER.EVACUATE"
	apiExpel    = "$JS.API.SERVER.REMOVE"

	apiMetaStepDown = "$JS.API.META.LEADER.STEPDOWN"

	systemAnswer = 5 * time.Second // a removal is answered when it is agreed on
)

// ErrNoMetaLeader: JetStream has nobody who could change its members just now.
var ErrNoMetaLeader = errors.New("JetStream has no meta leader that answers")

// SetPeers goes by another list of members. Routes to new ones are theirs to
// open, and this node's from its next start on.
func (c *Cluster) SetPeers(peers []Peer) {
	sorted := slices.SortedFunc(slices.Values(peers), func(a, b Peer) int { return strings.Compare(a.Node, b.Node) })
	c.peers.Store(&sorted)
}

func (c *Cluster) peerList() []Peer { return *c.peers.Load() }

// members lists the members' names, in the order of their lanes.
func (c *Cluster) members() []string {
	peers := *c.peers.Load()
	if !c.cfg.clustered() {
		return []string{c.cfg.Node}
	}
	names := make([]string, len(peers))
	for i, p := range peers {
		names[i] = p.Node
	}
	return names
}

// Routed lists the servers that this node has a route to, by their identities,
// and its own.
func (c *Cluster) Routed() []string {
	identities := []string{c.cfg.Identity}
	if !c.cfg.clustered() {
		return identities
	}
	routes, err := c.srv.Routez(nil)
	if err != nil {
		return identities
	}
	for _, r := range routes.Routes {
		if !slices.Contains(identities, r.RemoteName) {
			identities = append(identities, r.RemoteName)
		}
	}
	slices.Sort(identities)
	return identities
}

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
	for seen, total := 0, 1; seen < total; {
		page, err := c.streamPage(ctx, seen)
		if err != nil {
			return nil, fmt.Errorf("ask where the streams lie: %w", err)
		}
		for _, info := range page.Streams {
			all = append(all, StreamCopies{info.Config.Name, info.Config.Replicas, copiesOf(info.Cluster)})
		}
		for _, name := range page.Missing {
			all = append(all, StreamCopies{Stream: name})
		}
		seen, total = page.Offset+page.Limit, page.Total
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

// Evacuate moves what lies on a member's server to others, which keep the
// number of copies; it goes on after the answer. The server may serve
// meanwhile.
func (c *Cluster) Evacuate(ctx context.Context, identity string) error {
	return c.askSystem(ctx, apiEvacuate, identity)
}

// Expel takes a server out of JetStream, with all that lies on it: what is
// missing then is copied anew where there is room. To expel one that is not in
// changes nothing. One that leads JetStream only hands that on, and is to be
// expelled by a later call: a leader that removes itself stops before it has
// read that it is out, and goes on telling everybody that JetStream is not
// available.
func (c *Cluster) Expel(ctx context.Context, identity string) error {
	if info, err := c.srv.Jsz(&server.JSzOptions{}); err == nil && info.Meta != nil && info.Meta.Leader == identity {
		return c.stepMetaDown(ctx)
	}
	err := c.askSystem(ctx, apiExpel, identity)
	var refused *apiError
	if errors.As(err, &refused) && refused.ErrCode == notInMeta {
		return nil
	}
	return err
}

// notInMeta is the server's code for a server that is not in the meta group.
const notInMeta = 10044

func (c *Cluster) askSystem(ctx context.Context, subject, identity string) error {
	if c.system == nil {
		return errors.New("this node runs alone: it has no members")
	}
	body, err := json.Marshal(map[string]string{"peer": identity, "peer_id": peerHash(identity)})
	if err != nil {
		return err
	}
	if err := c.putToMeta(ctx, subject, body); err != nil {
		return fmt.Errorf("%s: %w", identity, err)
	}
	return nil
}

// stepMetaDown has JetStream's leader hand that on to another server.
func (c *Cluster) stepMetaDown(ctx context.Context) error {
	return c.putToMeta(ctx, apiMetaStepDown, nil)
}

// putToMeta asks JetStream's leader for something that it does or refuses.
func (c *Cluster) putToMeta(ctx context.Context, subject string, body []byte) error {
	m, err := c.system.ask(ctx, &nats.Msg{Subject: subject, Data: body}, systemAnswer)
	switch {
	case errors.Is(err, errNoAnswer), errors.Is(err, errNoResponders):
		return ErrNoMetaLeader
	case err != nil:
		return err
	}
	var answer struct {
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return fmt.Errorf("read the answer of JetStream's leader: %w", err)
	}
	if answer.Error != nil {
		return answer.Error
	}
	return nil
}

// peerHash is how JetStream calls a server among its peers: the first bytes of
// a hash of its name, each as one of 62 digits. It is asked for by that, since
// the name of a server that is long gone is forgotten.
func peerHash(identity string) string {
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	sum := sha256.Sum256([]byte(identity))
	hash := sum[:8]
	for i := range hash {
		hash[i] = digits[int(hash[i])%len(digits)]
	}
	return string(hash)
}
