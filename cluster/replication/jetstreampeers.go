package replication

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
)

// Requests to JetStream's meta leader, sent from the system account.
const (
	apiEvacuate     = "$JS.API.SERVER.EVACUATE"
	apiRemoveServer = "$JS.API.SERVER.REMOVE"

	apiMetaStepDown = "$JS.API.META.LEADER.STEPDOWN"

	systemTimeout = 5 * time.Second // a removal is answered after it is committed
)

// ErrNoMetaLeader means that JetStream has no meta leader at the moment, so that its
// servers cannot be changed.
var ErrNoMetaLeader = errors.New("JetStream has no meta leader that answers")

// Evacuate starts to move the replicas of all streams from a member's server to
// other servers. The number of replicas does not drop, and the server keeps
// serving meanwhile. It returns when JetStream has accepted the request, not when
// the move is complete.
func (r *Replication) Evacuate(ctx context.Context, identity string) error {
	return r.changeServer(ctx, apiEvacuate, identity)
}

// RemoveServer removes a server and its replicas from JetStream, which places new
// replicas where there is space. Removing an unknown server succeeds. If the
// server is JetStream's meta leader, RemoveServer only makes it step down, and
// must be called again: a meta leader that removes itself stops before it applies
// its own removal, and keeps answering that JetStream is not available.
func (r *Replication) RemoveServer(ctx context.Context, identity string) error {
	if info, err := r.local.NATS.Jsz(&server.JSzOptions{}); err == nil && info.Meta != nil && info.Meta.Leader == identity {
		return r.stepDownMeta(ctx, r.local.Config.Identity)
	}
	err := r.changeServer(ctx, apiRemoveServer, identity)
	if apiErr, refused := errors.AsType[*embedded.APIError](err); refused && apiErr.ErrCode == codePeerNotMember {
		return nil
	}
	return err
}

// codePeerNotMember is JetStream's error code for a server that is not in the meta
// group.
const codePeerNotMember = 10044

// changeServer sends a request about the server with this identity to the meta leader.
func (r *Replication) changeServer(ctx context.Context, subject, identity string) error {
	if r.local.System == nil {
		return errors.New("this node runs alone: it has no other members")
	}
	body, err := json.Marshal(map[string]string{"peer": identity, "peer_id": peerHash(identity)})
	if err != nil {
		return err
	}
	if err := r.requestMeta(ctx, subject, body); err != nil {
		return fmt.Errorf("%s: %w", identity, err)
	}
	return nil
}

// stepDownMeta makes JetStream's meta leader step down in favour of the server named
// preferred, if that one is current; "" means any server.
func (r *Replication) stepDownMeta(ctx context.Context, preferred string) error {
	var body []byte
	if preferred != "" {
		body = stepDownRequest(preferred)
	}
	return r.requestMeta(ctx, apiMetaStepDown, body)
}

// stepDownRequest returns the request to a leader to step down in favour of the server
// named preferred.
func stepDownRequest(preferred string) []byte {
	return fmt.Appendf(nil, `{"placement":{"preferred":%q}}`, preferred)
}

// requestMeta sends a request to JetStream's meta leader. The error is the one that the
// leader answers with, or [ErrNoMetaLeader] if there is no answer.
func (r *Replication) requestMeta(ctx context.Context, subject string, body []byte) error {
	err := r.local.System.RequestAPI(ctx, subject, body, systemTimeout, new(embedded.APIReply))
	if errors.Is(err, embedded.ErrNoAnswer) || errors.Is(err, nats.ErrNoResponders) {
		return ErrNoMetaLeader
	}
	return err
}

// peerHash returns the id of a server within JetStream: the first eight bytes of
// the SHA-256 of its name, each as one of 62 digits. The id is sent along with the
// name, because JetStream may have forgotten the name of a server that is long
// gone.
func peerHash(identity string) string {
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	sum := sha256.Sum256([]byte(identity))
	hash := sum[:8]
	for i := range hash {
		hash[i] = digits[int(hash[i])%len(digits)]
	}
	return string(hash)
}
