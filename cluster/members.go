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
		return c.stepMetaDown(ctx, c.cfg.Identity)
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

// stepMetaDown has JetStream's leader hand that on to another server: to one, if
// that is well, or with "" to any.
func (c *Cluster) stepMetaDown(ctx context.Context, to string) error {
	var body []byte
	if to != "" {
		body = fmt.Appendf(nil, `{"placement":{"preferred":%q}}`, to)
	}
	return c.putToMeta(ctx, apiMetaStepDown, body)
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
