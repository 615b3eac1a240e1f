package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// The eight commands of the runtime contract. In JSON the field "command" holds
// the name; see [ParseCommand].
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
	// QueueDispatch adds an external dispatch, one that the scheduler never
	// places, to the backlog.
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
	// MarkDelivered ends a notified dispatch successfully.
	MarkDelivered struct {
		RequestID string `json:"request_id"`
	}
	// MarkFailed ends a dispatch with a failure.
	MarkFailed struct {
		RequestID string `json:"request_id"`
		Reason    string `json:"reason"`
	}
	// RequestReplay asks for the accepted records from a cursor on to be read
	// again; a nil cursor ends a replay and discards its findings. Any text is
	// accepted: one that is not a cursor of this cluster means the beginning.
	RequestReplay struct {
		Cursor *string `json:"cursor"`
	}
	// CaptureSnapshot adds a snapshot to the history. Context, which is not part of
	// the JSON form, is the state beside the ledger of the node that proposes it; its
	// time is not used.
	CaptureSnapshot struct{ Context SnapshotContext }
)

func (*AcquireAuthority) Kind() Kind { return KindAcquireAuthority }
func (*RenewAuthority) Kind() Kind   { return KindRenewAuthority }
func (*QueueDispatch) Kind() Kind    { return KindQueueDispatch }
func (*MarkNotified) Kind() Kind     { return KindMarkNotified }
func (*MarkDelivered) Kind() Kind    { return KindMarkDelivered }
func (*MarkFailed) Kind() Kind       { return KindMarkFailed }
func (*RequestReplay) Kind() Kind    { return KindRequestReplay }
func (*CaptureSnapshot) Kind() Kind  { return KindCaptureSnapshot }

// CommandNames lists the contract's commands under the names that its documents
// use.
var CommandNames = []string{
	"acquire-authority", "renew-authority", "queue-dispatch", "mark-notified",
	"mark-delivered", "mark-failed", "request-replay", "capture-snapshot",
}

// contractCommands lists each command's tag, its kind, and its required and
// optional fields.
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

// ErrInvalidJSON is returned for a command that cannot be parsed.
var ErrInvalidJSON = errors.New("invalid JSON")

// ParseCommand parses one of the contract's commands. Unknown fields are
// ignored. An unknown command, a missing field, a field of the wrong type, a
// duplicate field and invalid Unicode are refused with [ErrInvalidJSON].
func ParseCommand(line []byte) (Command, error) {
	tag, fields, duplicated, err := parseTagged(line)
	if err != nil {
		return nil, err
	}
	for _, command := range contractCommands {
		if command.tag != tag {
			continue
		}
		if err := checkFields(fields, duplicated, command.required, command.optional); err != nil {
			return nil, err
		}
		return readCommand(fields, command.kind)
	}
	if _, isMailbox := mailboxFields[tag]; isMailbox {
		return nil, fmt.Errorf("%w: `%s` is for state directories only; name one with --state-dir", ErrInvalidJSON, tag)
	}
	return nil, unknownCommand(tag, contractTags())
}

// contractTags returns the tags of the contract's commands.
func contractTags() []string {
	tags := make([]string, len(contractCommands))
	for i, command := range contractCommands {
		tags[i] = command.tag
	}
	return tags
}

// unknownCommand returns the error for a command that is not in expected.
func unknownCommand(tag string, expected []string) error {
	if len(tag) > maxEchoedName {
		tag = strings.ToValidUTF8(tag[:maxEchoedName], "") + "…"
	}
	return fmt.Errorf("%w: unknown variant `%s`, expected one of %s", ErrInvalidJSON, tag, strings.Join(expected, ", "))
}

// parseTagged parses an object and returns the value of its field "command", with the
// results of readFields.
func parseTagged(line []byte) (tag string, fields map[string]json.RawMessage, duplicated map[string]bool, err error) {
	fields, duplicated, err = readFields(line)
	if err == nil {
		err = checkUnicode(line)
	}
	if err != nil {
		return "", nil, nil, fmt.Errorf("%w: %w", ErrInvalidJSON, err)
	}
	if raw, ok := fields["command"]; !ok {
		return "", nil, nil, fmt.Errorf("%w: missing field `command`", ErrInvalidJSON)
	} else if err := json.Unmarshal(raw, &tag); err != nil {
		return "", nil, nil, fmt.Errorf("%w: command must be a string", ErrInvalidJSON)
	}
	if duplicated["command"] {
		return "", nil, nil, fmt.Errorf("%w: duplicate field `command`", ErrInvalidJSON)
	}
	return tag, fields, duplicated, nil
}

// checkFields returns an error unless all required fields exist and are strings, and no
// required or optional one is repeated.
func checkFields(fields map[string]json.RawMessage, duplicated map[string]bool, required, optional []string) error {
	for _, name := range slices.Concat(optional, required) {
		if duplicated[name] {
			return fmt.Errorf("%w: duplicate field `%s`", ErrInvalidJSON, name)
		}
	}
	for _, name := range required {
		raw, ok := fields[name]
		if !ok {
			return fmt.Errorf("%w: missing field `%s`", ErrInvalidJSON, name)
		}
		if raw[0] != '"' {
			return fmt.Errorf("%w: %s must be a string", ErrInvalidJSON, name)
		}
	}
	return nil
}

// CommandTag returns the value of the field "command" for c, or "" if c is not
// one of the contract's commands.
func CommandTag(c Command) string {
	for _, command := range contractCommands {
		if command.kind == c.Kind() {
			return command.tag
		}
	}
	return ""
}

// maxEchoedName is how many bytes of an unknown name an error repeats: the
// error is sent in a message header.
const maxEchoedName = 64

// checkUnicode refuses what Go would decode as U+FFFD: bytes that are not
// UTF-8, and unpaired surrogates. Two ids that differ only there would become
// equal, and the second dispatch would be answered as if it were queued. line
// must be valid JSON, so that every escape in it is complete.
func checkUnicode(line []byte) error {
	if !utf8.Valid(line) {
		return errors.New("it holds bytes that are not UTF-8")
	}
	const escape = len(`\uXXXX`)
	for {
		start := bytes.IndexByte(line, '\\')
		if start < 0 {
			return nil
		}
		line = line[start:]
		first := unicodeEscape(line)
		if !utf16.IsSurrogate(first) {
			line = line[len(`\n`):] // the backslash and the character after it
			continue
		}
		second := unicodeEscape(line[escape:])
		if utf16.DecodeRune(first, second) == utf8.RuneError {
			return fmt.Errorf("%s is half of a surrogate pair", line[:escape])
		}
		line = line[2*escape:]
	}
}

// unicodeEscape returns the number of the \uXXXX that text begins with, or 0 if
// it begins otherwise.
func unicodeEscape(text []byte) rune {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0
	}
	n, _ := strconv.ParseUint(string(text[2:6]), 16, 16)
	return rune(n)
}

// readFields parses an object into its fields, and returns which names occur
// more than once, because it is unknown which of their values was meant. Both
// maps are nil for an empty object.
func readFields(line []byte) (fields map[string]json.RawMessage, duplicated map[string]bool, err error) {
	err = json.Unmarshal(line, &fields)
	if typeErr, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return nil, nil, fmt.Errorf("got a value of type %s; a command must be an object", typeErr.Value)
	}
	if err != nil || len(fields) == 0 {
		return nil, nil, err
	}

	duplicated = make(map[string]bool)
	seen := make(map[string]bool, len(fields))
	dec := json.NewDecoder(bytes.NewReader(line))
	for {
		token, err := dec.Token()
		if err != nil || token == json.Delim('}') {
			return fields, duplicated, err
		}
		name, ok := token.(string)
		if !ok {
			continue // the opening brace
		}
		duplicated[name] = seen[name]
		seen[name] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, nil, err
		}
	}
}

// readCommand returns a command of the given kind with the values of fields, which
// checkFields has accepted. It decodes the fields by their exact names: decoding into the
// struct would also accept "Owner" for "owner".
func readCommand(fields map[string]json.RawMessage, kind Kind) (Command, error) {
	c, _ := NewCommand(kind)
	var optionalErr error
	switch c := c.(type) {
	case *AcquireAuthority:
		c.Owner, c.LeaseID, c.LeasedUntil = stringField(fields, "owner"), stringField(fields, "lease_id"), stringField(fields, "leased_until")
	case *RenewAuthority:
		c.Owner, c.LeaseID, c.LeasedUntil = stringField(fields, "owner"), stringField(fields, "lease_id"), stringField(fields, "leased_until")
	case *QueueDispatch:
		c.RequestID, c.Target = stringField(fields, "request_id"), stringField(fields, "target")
		c.Metadata, optionalErr = compactMetadata(fields["metadata"])
	case *MarkNotified:
		c.RequestID, c.Channel = stringField(fields, "request_id"), stringField(fields, "channel")
	case *MarkDelivered:
		c.RequestID = stringField(fields, "request_id")
	case *MarkFailed:
		c.RequestID, c.Reason = stringField(fields, "request_id"), stringField(fields, "reason")
	case *RequestReplay:
		if raw, ok := fields["cursor"]; ok && json.Unmarshal(raw, &c.Cursor) != nil {
			optionalErr = errors.New("cursor must be a string or null")
		}
	}
	if optionalErr != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidJSON, optionalErr)
	}
	return c, nil
}

// stringField decodes a field that is known to begin with a quote. It cannot
// fail, because fields are valid JSON.
func stringField(fields map[string]json.RawMessage, name string) (s string) {
	_ = json.Unmarshal(fields[name], &s)
	return s
}

// compactMetadata returns raw on one line; null becomes nil.
func compactMetadata(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	var line bytes.Buffer
	if err := json.Compact(&line, raw); err != nil {
		return nil, err
	}
	return line.Bytes(), nil
}
