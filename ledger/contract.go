package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// The eight commands of the runtime contract. Their JSON carries the name in
// "command" and the fields beside it; see [ParseCommand].
type (
	// AcquireAuthority claims the authority lease.
	AcquireAuthority struct {
		Owner       string `json:"owner"`
		LeaseID     string `json:"lease_id"`
		LeasedUntil string `json:"leased_until"`
	}
	// RenewAuthority extends the lease of its owner.
	RenewAuthority struct {
		Owner       string `json:"owner"`
		LeaseID     string `json:"lease_id"`
		LeasedUntil string `json:"leased_until"`
	}
	// QueueDispatch adds a caller's own dispatch to the backlog.
	QueueDispatch struct {
		RequestID string          `json:"request_id"`
		Target    string          `json:"target"`
		Metadata  json.RawMessage `json:"metadata,omitempty"`
	}
	// MarkNotified moves a pending dispatch to notified.
	MarkNotified struct {
		RequestID string `json:"request_id"`
		Channel   string `json:"channel"`
	}
	// MarkDelivered ends a notified dispatch well.
	MarkDelivered struct {
		RequestID string `json:"request_id"`
	}
	// MarkFailed ends a dispatch badly.
	MarkFailed struct {
		RequestID string `json:"request_id"`
		Reason    string `json:"reason"`
	}
	// RequestReplay asks for the accepted records from a cursor on to be read
	// again; no cursor ends a replay and forgets what it found. Any text is
	// taken: one that is no cursor of this yard stands for the beginning.
	RequestReplay struct {
		Cursor *string `json:"cursor"`
	}
	// CaptureSnapshot records that a snapshot was taken.
	CaptureSnapshot struct{}
)

func (*AcquireAuthority) Kind() Kind { return KindAcquireAuthority }
func (*RenewAuthority) Kind() Kind   { return KindRenewAuthority }
func (*QueueDispatch) Kind() Kind    { return KindQueueDispatch }
func (*MarkNotified) Kind() Kind     { return KindMarkNotified }
func (*MarkDelivered) Kind() Kind    { return KindMarkDelivered }
func (*MarkFailed) Kind() Kind       { return KindMarkFailed }
func (*RequestReplay) Kind() Kind    { return KindRequestReplay }
func (*CaptureSnapshot) Kind() Kind  { return KindCaptureSnapshot }

// CommandNames lists the contract's commands as its documents label them.
var CommandNames = []string{
	"acquire-authority", "renew-authority", "queue-dispatch", "mark-notified",
	"mark-delivered", "mark-failed", "request-replay", "capture-snapshot",
}

// contractCommands: the "command" tag, the kind, the fields that must be there,
// and those that may.
var contractCommands = []struct {
	tag      string
	kind     Kind
	required []string
	optional []string
}{
	{"AcquireAuthority", KindAcquireAuthority, []string{"owner", "lease_id", "leased_until"}, nil},
	{"RenewAuthority", KindRenewAuthority, []string{"owner", "lease_id", "leased_until"}, nil},
	{"QueueDispatch", KindQueueDispatch, []string{"request_id", "target"}, []string{"metadata"}},
	{"MarkNotified", KindMarkNotified, []string{"request_id", "channel"}, nil},
	{"MarkDelivered", KindMarkDelivered, []string{"request_id"}, nil},
	{"MarkFailed", KindMarkFailed, []string{"request_id", "reason"}, nil},
	{"RequestReplay", KindRequestReplay, nil, []string{"cursor"}},
	{"CaptureSnapshot", KindCaptureSnapshot, nil, nil},
}

// ErrInvalidJSON marks a command that could not be read.
var ErrInvalidJSON = errors.New("invalid JSON")

// ParseCommand reads one of the contract's commands. Unknown fields are
// ignored; an unknown command, a missing field, a field of another type, one
// that comes twice and text that is no Unicode are refused with
// [ErrInvalidJSON].
func ParseCommand(line []byte) (Command, error) {
	fields, twice, err := readFields(line)
	if err == nil {
		err = checkUnicode(line)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidJSON, err)
	}
	var tag string
	if raw, ok := fields["command"]; !ok {
		return nil, fmt.Errorf("%w: missing field `command`", ErrInvalidJSON)
	} else if err := json.Unmarshal(raw, &tag); err != nil {
		return nil, fmt.Errorf("%w: command must be a string", ErrInvalidJSON)
	}
	if twice["command"] {
		return nil, fmt.Errorf("%w: duplicate field `command`", ErrInvalidJSON)
	}
	for _, known := range contractCommands {
		if known.tag != tag {
			continue
		}
		for _, name := range append(known.optional, known.required...) {
			if twice[name] {
				return nil, fmt.Errorf("%w: duplicate field `%s`", ErrInvalidJSON, name)
			}
		}
		return readCommand(fields, known.kind, known.required)
	}
	return nil, fmt.Errorf("%w: unknown variant `%s`, expected one of AcquireAuthority, RenewAuthority, QueueDispatch, MarkNotified, MarkDelivered, MarkFailed, RequestReplay, CaptureSnapshot", ErrInvalidJSON, shorten(tag))
}

// CommandTag is what "command" says of one of the contract's commands; "" for
// any other.
func CommandTag(c Command) string {
	for _, known := range contractCommands {
		if known.kind == c.Kind() {
			return known.tag
		}
	}
	return ""
}

// maxEcho is how many bytes of a name that nobody knows a refusal repeats: it
// travels in a header.
const maxEcho = 64

func shorten(name string) string {
	if len(name) <= maxEcho {
		return name
	}
	end := maxEcho
	for !utf8.RuneStart(name[end]) {
		end--
	}
	return name[:end] + "…"
}

// checkUnicode refuses what Go would read as U+FFFD: bytes that are not UTF-8,
// and halves of surrogate pairs. Two ids that differ there would become one,
// and the second dispatch would be answered as if it were queued.
func checkUnicode(line []byte) error {
	if !utf8.Valid(line) {
		return errors.New("it holds bytes that are not UTF-8")
	}
	for {
		at := bytes.IndexByte(line, '\\')
		if at < 0 {
			return nil
		}
		line = line[at:] // it is valid JSON: an escape is whole
		first := escaped(line)
		switch {
		case !utf16.IsSurrogate(first):
			line = line[2:]
		case utf16.DecodeRune(first, escaped(line[6:])) == utf8.RuneError:
			return fmt.Errorf("%s is half of a surrogate pair", line[:6])
		default:
			line = line[12:]
		}
	}
}

// escaped is the number in a \uXXXX that a text begins with; 0 if it begins
// otherwise.
func escaped(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0
	}
	n, _ := strconv.ParseUint(string(text[2:6]), 16, 16)
	return rune(n)
}

// readFields takes an object apart, and tells which of its fields come twice: of
// those nobody could say which one was meant.
func readFields(line []byte) (fields map[string]json.RawMessage, twice map[string]bool, err error) {
	var other *json.UnmarshalTypeError
	switch err := json.Unmarshal(line, &fields); {
	case errors.As(err, &other):
		return nil, nil, fmt.Errorf("it is of type %s, and a command is an object", other.Value)
	case err != nil || len(fields) == 0:
		return nil, nil, err
	}
	twice = make(map[string]bool)
	seen := make(map[string]bool, len(fields))
	dec := json.NewDecoder(bytes.NewReader(line))
	for first := true; ; first = false {
		token, err := dec.Token()
		if err != nil || token == json.Delim('}') {
			return fields, twice, err
		}
		if first {
			continue // the opening brace
		}
		name, _ := token.(string)
		twice[name] = seen[name]
		seen[name] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, nil, err
		}
	}
}

// readCommand takes each field by its exact name, which decoding into the
// struct would not: there, "Owner" is as good as "owner".
func readCommand(fields map[string]json.RawMessage, kind Kind, required []string) (Command, error) {
	for _, name := range required {
		raw, ok := fields[name]
		if !ok {
			return nil, fmt.Errorf("%w: missing field `%s`", ErrInvalidJSON, name)
		}
		if raw[0] != '"' {
			return nil, fmt.Errorf("%w: %s must be a string", ErrInvalidJSON, name)
		}
	}
	c, _ := NewCommand(kind)
	var optional error
	switch c := c.(type) {
	case *AcquireAuthority:
		c.Owner, c.LeaseID, c.LeasedUntil = text(fields, "owner"), text(fields, "lease_id"), text(fields, "leased_until")
	case *RenewAuthority:
		c.Owner, c.LeaseID, c.LeasedUntil = text(fields, "owner"), text(fields, "lease_id"), text(fields, "leased_until")
	case *QueueDispatch:
		c.RequestID, c.Target = text(fields, "request_id"), text(fields, "target")
		c.Metadata, optional = metadata(fields["metadata"])
	case *MarkNotified:
		c.RequestID, c.Channel = text(fields, "request_id"), text(fields, "channel")
	case *MarkDelivered:
		c.RequestID = text(fields, "request_id")
	case *MarkFailed:
		c.RequestID, c.Reason = text(fields, "request_id"), text(fields, "reason")
	case *RequestReplay:
		if raw, ok := fields["cursor"]; ok && json.Unmarshal(raw, &c.Cursor) != nil {
			optional = errors.New("cursor must be a string or null")
		}
	}
	if optional != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidJSON, optional)
	}
	return c, nil
}

// text reads a field that is known to be a string: valid JSON that begins with
// a quote cannot fail.
func text(fields map[string]json.RawMessage, name string) (s string) {
	_ = json.Unmarshal(fields[name], &s)
	return s
}

// metadata is any JSON, on one line; null is none.
func metadata(raw json.RawMessage) (json.RawMessage, error) {
	if raw == nil || bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	var line bytes.Buffer
	if err := json.Compact(&line, raw); err != nil {
		return nil, err
	}
	return line.Bytes(), nil
}
