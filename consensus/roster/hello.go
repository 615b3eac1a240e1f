package roster

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// What a connection is made for.
const (
	probe   = "probe" // to learn the other's hello
	forRaft = "raft"  // to be handed to raft
)

// A hello is framed as magic, version, length, JSON. The first five bytes stay
// as they are in every version, so that versions can refuse each other in words.
const (
	magic        = "YARD"
	helloVersion = 1
	headerLen    = len(magic) + 1 + 4
	maxHello     = 64 << 10
	maxVersion   = 128 // bytes of a build's name
)

// hello is what each side says of itself first.
type hello struct {
	Purpose string   `json:"purpose,omitempty"`
	Yard    string   `json:"yard"` // as people call it
	Node    string   `json:"node"`
	Dir     string   `json:"dir"`
	YardID  string   `json:"yard_id,omitempty"` // "": this directory has not formed
	Roster  []Seat   `json:"roster,omitempty"`  // of the forming
	Roll    *Roll    `json:"roll,omitempty"`    // who belongs to it now; nil: its founders
	Members []string `json:"members"`           // declared names, sorted
	Plan    string   `json:"plan,omitempty"`    // the yard it would form from what it sees
	Build   Build    `json:"build,omitzero"`
	Refused string   `json:"refused,omitempty"`

	Life   string          `json:"life,omitempty"`   // random, of this process
	Log    *uint64         `json:"log,omitempty"`    // how far its log reaches; nil: not known yet
	Fresh  bool            `json:"fresh,omitempty"`  // its log may be begun again
	Behind bool            `json:"behind,omitempty"` // refused because the other's log has lost its end
	Word   json.RawMessage `json:"word,omitempty"`   // how the node does, see [Door.Say]
}

func (h *hello) formed() bool { return h.YardID != "" }

func (h *hello) seat() Seat { return Seat{Node: h.Node, Dir: h.Dir} }

// peers are the members that this side knows of.
func (h *hello) peers() []Peer {
	r := record{Roster: h.Roster}
	if h.Roll != nil {
		r.Roll = *h.Roll
	}
	return r.peers()
}

// seatOf finds who sits under a member's name.
func (h *hello) seatOf(node string) (Seat, bool) {
	for _, p := range h.peers() {
		if p.Node == node {
			return p.Seat, true
		}
	}
	return Seat{}, false
}

// sits tells that this very seat is a member's.
func (h *hello) sits(seat Seat) bool {
	return slices.ContainsFunc(h.peers(), func(p Peer) bool { return p.Seat == seat })
}

// versionError says that the other side speaks another hello.
type versionError struct{ theirs byte }

func (e *versionError) Error() string {
	return fmt.Sprintf("speaks version %d of the members' protocol, this node %d: run the same release on both", e.theirs, helloVersion)
}

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
	if !nodeName.MatchString(h.Node) || len(h.Build.Version) > maxVersion {
		return hello{}, errors.New("hello is not valid: it names no member, or a build of many words")
	}
	return h, nil
}
