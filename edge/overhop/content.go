package overhop

import "errors"

// CapContent is the capability, in HELLO and HI, of reading results and payloads of any
// size by CONTENT.
const CapContent = "content"

// Values of a job that CONTENT reads.
const (
	ContentResult  = "result"
	ContentPayload = "payload"
)

// MaxContentPart is the size of the largest part that a node sends of a value.
const MaxContentPart = 1 << 20

// ContentRequest is the payload of CONTENT, which reads a part of a job's result or payload.
type ContentRequest struct {
	JID    string
	Value  string // [ContentResult] or [ContentPayload]
	Offset int64  // of the part's first byte
}

// ParseContent parses a CONTENT. The error is a [*Violation].
func ParseContent(p Raw) (ContentRequest, error) {
	r := newExtensionReader(p, "jid", "value", "offset")
	return ContentRequest{JID: r.str("jid"), Value: r.str("value"), Offset: r.optInt("offset", 0, maxInt, 0)}, r.err
}

// ErrNoContent is returned if the node, of an older release, does not have [CapContent].
var ErrNoContent = errors.New("the node cannot send values that do not fit into a frame; update it, or read the value over HTTP")
