package overhop

import (
	"errors"
	"fmt"
)

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

// ReadContent reads a value of a job in parts. call sends a CONTENT and returns the answer.
func ReadContent(jid, value string, call func(Raw) (Raw, error)) (Raw, error) {
	var whole []byte
	var version, encoding string
	for {
		part, err := call(Fields{"jid": jid, "value": value, "offset": len(whole)}.Raw())
		if err != nil {
			return nil, err
		}
		size, _ := part.Get("size").Int()
		data, _ := part.Get("data").Bin()
		if current := part.getText("version"); version != current {
			if len(whole) > 0 {
				return nil, fmt.Errorf("%s of job %s has changed while it was read", value, jid)
			}
			version, encoding = current, part.getText("encoding")
			whole = make([]byte, 0, min(max(size, 0), MaxFrameLimit))
		}
		whole = append(whole, data...)
		switch {
		case int64(len(whole)) == size && encoding == "msgpack":
			return Raw(whole), CheckDepth(whole, payloadDepth)
		case int64(len(whole)) == size:
			return FromJSON(whole)
		case len(data) == 0 || int64(len(whole)) > size:
			return nil, fmt.Errorf("%s of job %s has %d bytes, the node sent %d", value, jid, size, len(whole))
		}
	}
}
