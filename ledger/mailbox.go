package ledger

import "slices"

// MailboxCommand is one of the three mailbox commands of the contract's later
// revision. They are about messages between workers, which no yard keeps: only a state
// directory carries them out.
type MailboxCommand struct {
	Tag       string // CreateMailboxMessage, MarkMailboxNotified or MarkMailboxDelivered
	MessageID string

	FromWorker, ToWorker, Body string // only of CreateMailboxMessage
}

// Tags of the mailbox commands.
const (
	CreateMailboxMessage = "CreateMailboxMessage"
	MarkMailboxNotified  = "MarkMailboxNotified"
	MarkMailboxDelivered = "MarkMailboxDelivered"
)

// MailboxCommandNames and MailboxEventNames list the mailbox commands and their events
// under the names that documents use.
var (
	MailboxCommandNames = []string{"create-mailbox-message", "mark-mailbox-notified", "mark-mailbox-delivered"}
	MailboxEventNames   = []string{"mailbox-message-created", "mailbox-notified", "mailbox-delivered"}
)

// mailboxFields lists the required fields of each mailbox command.
var mailboxFields = map[string][]string{
	CreateMailboxMessage: {"message_id", "from_worker", "to_worker", "body"},
	MarkMailboxNotified:  {"message_id"},
	MarkMailboxDelivered: {"message_id"},
}

// ParseMailboxCommand parses a mailbox command as [ParseCommand] parses the others. It
// returns nil and no error for a command that ParseCommand parses. The error for an unknown
// command lists the commands of both.
func ParseMailboxCommand(line []byte) (*MailboxCommand, error) {
	tag, fields, duplicated, err := parseTagged(line)
	if err != nil {
		return nil, err
	}
	required, isMailbox := mailboxFields[tag]
	switch tags := contractTags(); {
	case slices.Contains(tags, tag):
		return nil, nil
	case !isMailbox:
		return nil, unknownCommand(tag, append(tags, CreateMailboxMessage, MarkMailboxNotified, MarkMailboxDelivered))
	}
	if err := checkFields(fields, duplicated, required, nil); err != nil {
		return nil, err
	}
	c := &MailboxCommand{Tag: tag, MessageID: stringField(fields, "message_id")}
	if tag == CreateMailboxMessage {
		c.FromWorker, c.ToWorker, c.Body = stringField(fields, "from_worker"), stringField(fields, "to_worker"), stringField(fields, "body")
	}
	return c, nil
}
