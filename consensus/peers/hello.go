package peers

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
)

// Purposes of a connection.
const (
	purposeProbe = "probe" // to get the other side's hello
	purposeRaft  = "raft"  // to be passed to Raft
)

// A hello is framed as magic, version, length, JSON. The first five bytes are
// the same in every version, so that versions can refuse each other with a
// readable reason.
const (
	magic        = "YARD"
	helloVersion = 1
	headerLen    = len(magic) + 1 + 4
	maxHello     = 64 << 10
	maxVersion   = 128 // bytes of a build's version
)

// nodeName matches the valid names of members.
var nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// hello is the first message that each side of a connection sends.
type hello struct {
	Purpose          string      `json:"purpose,omitempty"`
	Yard             string      `json:"yard"` // name of the cluster
	Node             string      `json:"node"`
	Dir              string      `json:"dir"`
	YardID           string      `json:"yard_id,omitempty"` // "": this directory belongs to no cluster yet
	BootstrapMembers []MemberID  `json:"roster,omitempty"`  // the members that formed the cluster
	Membership       *Membership `json:"roll,omitempty"`    // the present members; nil: the bootstrap members
	Members          []string    `json:"members"`           // names of the declared members, sorted
	Plan             string      `json:"plan,omitempty"`    // id of the cluster that it would form from what it sees
	Build            Build       `json:"build,omitzero"`
	Refused          string      `json:"refused,omitempty"`
	Nonce            string      `json:"nonce,omitempty"` // random, of this connection
	Proof            []byte      `json:"proof,omitempty"` // see secret.go

	Instance  string          `json:"life,omitempty"`   // random id of this process
	LastIndex *uint64         `json:"log,omitempty"`    // last index of its log; nil: not known yet
	Fresh     bool            `json:"fresh,omitempty"`  // its log may start again from empty
	Truncated bool            `json:"behind,omitempty"` // refused because the other side's log has lost its end
	Status    json.RawMessage `json:"word,omitempty"`   // the node's status, see [PeerListener.SetNodeStatus]
}

func (h *hello) formed() bool { return h.YardID != "" }

func (h *hello) memberID() MemberID { return MemberID{Node: h.Node, Dir: h.Dir} }

// peers returns the members that the sender knows.
func (h *hello) peers() []Peer {
	r := identityRecord{BootstrapMembers: h.BootstrapMembers}
	if h.Membership != nil {
		r.Membership = *h.Membership
	}
	return r.peers()
}

// memberNamed returns the id of the member with this name.
func (h *hello) memberNamed(node string) (MemberID, bool) {
	for _, p := range h.peers() {
		if p.Node == node {
			return p.MemberID, true
		}
	}
	return MemberID{}, false
}

// hasMember reports whether id, both name and directory, is a member's.
func (h *hello) hasMember(id MemberID) bool {
	return slices.ContainsFunc(h.peers(), func(p Peer) bool { return p.MemberID == id })
}

// versionError is returned when the other side uses another version of the
// hello.
type versionError struct{ theirs byte }

func (e *versionError) Error() string {
	return fmt.Sprintf("uses version %d of the members' protocol, this node %d: run the same release on both", e.theirs, helloVersion)
}

// writeHello writes a hello with its frame, in one Write.
func writeHello(w io.Writer, h hello) error {
	body, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("encode hello: %w", err)
	}
	frame := append(make([]byte, 0, headerLen+len(body)), magic...)
	frame = append(frame, helloVersion)
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(body)))
	_, err = w.Write(append(frame, body...))
	return err
}

// readHello reads and checks one hello. A sender that uses another version of the
// protocol causes a [*versionError], and nothing after the version is read.
func readHello(r io.Reader) (hello, error) {
	var head [headerLen]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return hello{}, fmt.Errorf("read hello: %w", err)
	}
	if string(head[:len(magic)]) != magic {
		return hello{}, fmt.Errorf("not a member of a yard: its first bytes are %q", head[:len(magic)])
	}
	if v := head[len(magic)]; v != helloVersion {
		return hello{}, &versionError{theirs: v}
	}
	size := binary.BigEndian.Uint32(head[len(magic)+1:])
	if size > maxHello {
		return hello{}, fmt.Errorf("hello of %d bytes; at most %d", size, maxHello)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return hello{}, fmt.Errorf("read hello: %w", err)
	}
	var h hello
	if err := json.Unmarshal(body, &h); err != nil {
		return hello{}, fmt.Errorf("hello is not valid: %w", err)
	}
	if !nodeName.MatchString(h.Node) || len(h.Build.Version) > maxVersion || len(h.Build.Zones) > maxVersion {
		return hello{}, errors.New("hello is not valid: the node name is malformed, or the build version is too long")
	}
	return h, nil
}
