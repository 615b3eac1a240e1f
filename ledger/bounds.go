package ledger

import "fmt"

// Bounds of callers' texts, in bytes. They hold what one command may add to an
// entry of the log and to a line of history.
const (
	MaxText     = 128     // ids, targets, channels, lease fields
	MaxReason   = 4 << 10 // reasons and cursors
	MaxMetadata = 4 << 10 // of an own dispatch
)

// TooLongError refuses a command with a text beyond its bound.
type TooLongError struct {
	Field    string
	Len, Max int
}

func (e *TooLongError) Error() string {
	return fmt.Sprintf("dispatch error: %s has %d bytes; at most %d", e.Field, e.Len, e.Max)
}

// bounded is a caller's text and what it may be.
type bounded struct {
	field     string
	size, max int
}

// texts lists the texts of a command that come from callers.
func texts(c Command) []bounded {
	switch c := c.(type) {
	case *AcquireAuthority:
		return lease(c.Owner, c.LeaseID, c.LeasedUntil)
	case *RenewAuthority:
		return lease(c.Owner, c.LeaseID, c.LeasedUntil)
	case *QueueDispatch:
		return []bounded{
			{"request_id", len(c.RequestID), MaxText}, {"target", len(c.Target), MaxText},
			{"metadata", len(c.Metadata), MaxMetadata},
		}
	case *MarkNotified:
		return []bounded{{"request_id", len(c.RequestID), MaxText}, {"channel", len(c.Channel), MaxText}}
	case *MarkDelivered:
		return []bounded{{"request_id", len(c.RequestID), MaxText}}
	case *MarkFailed:
		return []bounded{{"request_id", len(c.RequestID), MaxText}, {"reason", len(c.Reason), MaxReason}}
	case *RequestReplay:
		if c.Cursor != nil {
			return []bounded{{"cursor", len(*c.Cursor), MaxReason}}
		}
	case *NoteWorkers:
		all := []bounded{{"node", len(c.Node), MaxText}}
		for i := range c.Notes {
			n := &c.Notes[i]
			all = append(all, bounded{"worker", len(n.Worker), MaxText}, bounded{"detail", len(n.Detail), MaxText})
		}
		return all
	case *CancelJob:
		return []bounded{{"reason", len(c.Reason), MaxReason}}
	case *SetCron:
		return []bounded{
			{"name", len(c.Cron.Name), MaxText}, {"schedule", len(c.Cron.Times), MaxText}, {"time_zone", len(c.Cron.Zone), MaxText},
			{"queue", len(c.Cron.Queue), MaxText}, {"job", len(c.Cron.Body), MaxCronBody},
		}
	case *RemoveCron:
		return []bounded{{"name", len(c.Name), MaxText}}
	case *PauseCron:
		return []bounded{{"name", len(c.Name), MaxText}}
	case *TickCrons:
		all := make([]bounded, len(c.Ticks))
		for i := range c.Ticks {
			all[i] = bounded{"name", len(c.Ticks[i].Name), MaxText}
		}
		return all
	case *SetMembers:
		var all []bounded
		for i := range c.Members {
			all = append(all, seat(&c.Members[i])...)
		}
		return all
	case *ChangeMembers:
		all := []bounded{{"leave", len(c.Leave), MaxText}}
		if c.Join != nil {
			all = append(all, seat(c.Join)...)
		}
		return all
	case *StepMember:
		return []bounded{{"id", len(c.ID), MaxText}}
	case *AddQueue:
		return []bounded{{"name", len(c.Name), MaxText}}
	case *RemoveQueue:
		return []bounded{{"name", len(c.Name), MaxText}}
	case *PauseQueue:
		return []bounded{{"name", len(c.Name), MaxText}}
	case *Hold:
		return []bounded{{"holder", len(c.Holder), MaxText}}
	case *BringBack:
		all := []bounded{{"id", len(c.ID), MaxText}, {"source", len(c.Source), MaxReason}, {"data", len(c.Data), MaxBringPart}, {"sha256", len(c.SHA256), MaxText}}
		for i := range c.Lanes {
			all = append(all, bounded{"lane", len(c.Lanes[i]), MaxText})
		}
		return all
	}
	return nil
}

func lease(owner, id, until string) []bounded {
	return []bounded{{"owner", len(owner), MaxText}, {"lease_id", len(id), MaxText}, {"leased_until", len(until), MaxText}}
}

// seat is a member's texts; an address may be as long as a host's name.
func seat(m *Member) []bounded {
	const maxAddress = 262
	return []bounded{
		{"member", len(m.Node), MaxText}, {"directory", len(m.Dir), MaxText},
		{"route", len(m.Route), maxAddress}, {"raft", len(m.Raft), maxAddress},
	}
}

// Check refuses a command with a text that is too long; see [TooLongError].
func Check(c Command) error {
	for _, t := range texts(c) {
		if t.size > t.max {
			return &TooLongError{Field: t.field, Len: t.size, Max: t.max}
		}
	}
	return nil
}

// TextBytes is what a command's texts take together, in bytes.
func TextBytes(c Command) (n int) {
	for _, t := range texts(c) {
		n += t.size
	}
	return n
}
