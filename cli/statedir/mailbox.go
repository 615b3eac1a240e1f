package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// message is a message between workers as stored in mailbox.json.
type message struct {
	MessageID   string  `json:"message_id"`
	FromWorker  string  `json:"from_worker"`
	ToWorker    string  `json:"to_worker"`
	Body        string  `json:"body"`
	CreatedAt   string  `json:"created_at"`
	NotifiedAt  *string `json:"notified_at"`
	DeliveredAt *string `json:"delivered_at"`
}

// mailboxEvent is an event of a mailbox command. The event of a new message does not
// have its body.
type mailboxEvent struct {
	Event      string  `json:"event"`
	MessageID  string  `json:"message_id"`
	FromWorker *string `json:"from_worker,omitempty"`
	ToWorker   *string `json:"to_worker,omitempty"`
}

// The events of the mailbox commands.
const (
	messageCreated   = "MailboxMessageCreated"
	messageNotified  = "MailboxNotified"
	messageDelivered = "MailboxDelivered"
)

// maxMailboxName is the longest id of a message and name of a worker, in bytes.
const maxMailboxName = 128

// findMessage returns the message with an id, or nil if there is none.
func (s *state) findMessage(id string) *message {
	for i := range s.messages {
		if s.messages[i].MessageID == id {
			return &s.messages[i]
		}
	}
	return nil
}

// applyMailbox executes a mailbox command and returns its event, as JSON. changed
// reports whether the event was added: creating the same message again adds none. A
// refused command changes nothing.
func (s *state) applyMailbox(c *ledger.MailboxCommand, now time.Time) (answer []byte, changed bool, err error) {
	stored, at := s.findMessage(c.MessageID), now.UTC().Format(timeFormat)
	event := mailboxEvent{MessageID: c.MessageID}
	switch {
	case c.Tag == ledger.CreateMailboxMessage:
		event.Event, event.FromWorker, event.ToWorker = messageCreated, &c.FromWorker, &c.ToWorker
		if answer, err = marshal(event); err != nil {
			return nil, false, err
		}
		added, err := s.addMessage(c, at)
		if added {
			s.events = append(s.events, answer)
		}
		return answer, added, err
	case stored == nil:
		return nil, false, errors.New("mailbox error: mailbox record not found: " + c.MessageID)
	case stored.DeliveredAt != nil:
		return nil, false, errors.New("mailbox error: mailbox message already delivered: " + c.MessageID)
	case c.Tag == ledger.MarkMailboxNotified:
		event.Event, stored.NotifiedAt = messageNotified, &at
	default: // ledger.MarkMailboxDelivered
		event.Event, stored.DeliveredAt = messageDelivered, &at
	}
	if answer, err = marshal(event); err != nil {
		return nil, false, err
	}
	s.events = append(s.events, answer)
	return answer, true, nil
}

// addMessage adds the message of a command, created at the given time. It returns false
// for a message that exists already, and an error if that has other content.
func (s *state) addMessage(c *ledger.MailboxCommand, at string) (added bool, err error) {
	for _, name := range [...]string{c.MessageID, c.FromWorker, c.ToWorker} {
		if len(name) > maxMailboxName {
			return false, fmt.Errorf("mailbox error: an id or name has %d bytes; at most %d", len(name), maxMailboxName)
		}
	}
	if stored := s.findMessage(c.MessageID); stored != nil {
		if stored.FromWorker != c.FromWorker || stored.ToWorker != c.ToWorker || stored.Body != c.Body {
			return false, errors.New("mailbox error: duplicate message id with other content: " + c.MessageID)
		}
		return false, nil
	}
	s.messages = append(s.messages, message{
		MessageID: c.MessageID, FromWorker: c.FromWorker, ToWorker: c.ToWorker, Body: c.Body, CreatedAt: at,
	})
	return true, nil
}

// foldMailbox applies an event of the original program about a message. The message has
// no body, because the event has none. An event that does not follow from the state
// changes nothing.
func (s *state) foldMailbox(e *event, now string) {
	stored := s.findMessage(e.MessageID)
	switch {
	case stored == nil && e.Event == messageCreated:
		s.messages = append(s.messages, message{MessageID: e.MessageID, FromWorker: e.FromWorker, ToWorker: e.ToWorker, CreatedAt: now})
	case stored == nil || stored.DeliveredAt != nil:
	case e.Event == messageNotified:
		stored.NotifiedAt = &now
	case e.Event == messageDelivered:
		stored.DeliveredAt = &now
	}
}

// importMailbox takes the messages of the original program's mailbox.json, which has
// their bodies and times; file is nil if it does not exist. Of several messages with one
// id it keeps the first, to which that program applies all marks.
func (s *state) importMailbox(file []byte) error {
	if file == nil {
		return nil
	}
	originals, err := readRecords[message](file)
	if err != nil {
		return err
	}
	imported := make(map[string]bool)
	for _, original := range originals {
		if imported[original.MessageID] {
			continue
		}
		imported[original.MessageID] = true
		if stored := s.findMessage(original.MessageID); stored != nil {
			*stored = original
		} else {
			s.messages = append(s.messages, original)
		}
	}
	return nil
}

// pruneMessages removes the messages that were delivered before the given time, which is
// in timeFormat. It returns the ids of those that have not been delivered.
func (s *state) pruneMessages(before string) (undelivered map[string]bool) {
	undelivered = make(map[string]bool)
	kept := s.messages[:0:0]
	for _, m := range s.messages {
		if m.DeliveredAt != nil && *m.DeliveredAt < before {
			continue
		}
		if m.DeliveredAt == nil {
			undelivered[m.MessageID] = true
		}
		kept = append(kept, m)
	}
	s.messages = kept
	return undelivered
}

// messageLines returns the messages as lines of JSON.
func (s *state) messageLines() (lines [][]byte, err error) {
	for i := range s.messages {
		line, err := marshal(&s.messages[i])
		if err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// decodeMessage adds the message in a line of the state file.
func (s *state) decodeMessage(line []byte) error {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return fmt.Errorf("a message: %w", err)
	}
	s.messages = append(s.messages, m)
	return nil
}
