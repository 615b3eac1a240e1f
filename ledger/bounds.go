package ledger

import (
	"fmt"
	"slices"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Limits of texts in commands, in bytes. They bound what one command may add to
// a log entry and to a line of history.
const (
	MaxText     = 128     // ids, targets, channels, lease fields
	MaxReason   = 4 << 10 // reasons and cursors
	MaxMetadata = 4 << 10 // metadata of an external dispatch
)

// textField is the size of one text of a command, and its limit.
type textField struct {
	name      string
	size, max int
}

// textFields returns the texts of a command that come from callers or the
// configuration, under the names that an error uses for them.
func textFields(c Command) []textField {
	switch c := c.(type) {
	case *AcquireAuthority:
		return leaseFields(c.Owner, c.LeaseID, c.LeasedUntil)
	case *RenewAuthority:
		return leaseFields(c.Owner, c.LeaseID, c.LeasedUntil)
	case *QueueDispatch:
		return []textField{
			{"request_id", len(c.RequestID), MaxText}, {"target", len(c.Target), MaxText},
			{"metadata", len(c.Metadata), MaxMetadata},
		}
	case *MarkNotified:
		return []textField{{"request_id", len(c.RequestID), MaxText}, {"channel", len(c.Channel), MaxText}}
	case *MarkDelivered:
		return []textField{{"request_id", len(c.RequestID), MaxText}}
	case *MarkFailed:
		return []textField{{"request_id", len(c.RequestID), MaxText}, {"reason", len(c.Reason), MaxReason}}
	case *RequestReplay:
		if c.Cursor != nil {
			return []textField{{"cursor", len(*c.Cursor), MaxReason}}
		}
	case *RecordWorkerEvents:
		all := []textField{{"node", len(c.Node), MaxText}}
		for i := range c.Events {
			event := &c.Events[i]
			all = append(all, textField{"worker", len(event.Worker), MaxText}, textField{"detail", len(event.Detail), MaxText})
		}
		return all
	case *RecordAct:
		return []textField{{"action", len(c.Action), MaxText}, {"queue", len(c.Queue), MaxText}, {"target", len(c.Target), MaxReason}}
	case *CancelJob:
		return []textField{{"reason", len(c.Reason), MaxReason}}
	case *SetCron:
		return []textField{
			{"name", len(c.Cron.Name), MaxText}, {"schedule", len(c.Cron.Schedule), MaxText}, {"time_zone", len(c.Cron.TimeZone), MaxText},
			{"queue", len(c.Cron.Queue), MaxText}, {"job", len(c.Cron.Body), MaxCronBody},
		}
	case *RemoveCron:
		return []textField{{"name", len(c.Name), MaxText}}
	case *PauseCron:
		return []textField{{"name", len(c.Name), MaxText}}
	case *TickCrons:
		all := make([]textField, len(c.Ticks))
		for i := range c.Ticks {
			all[i] = textField{"name", len(c.Ticks[i].Name), MaxText}
		}
		return all
	case *SetMembers:
		var all []textField
		for i := range c.Members {
			all = append(all, memberFields(&c.Members[i])...)
		}
		return all
	case *ChangeMembers:
		all := []textField{{"leave", len(c.Leave), MaxText}}
		if c.Join != nil {
			all = append(all, memberFields(c.Join)...)
		}
		return all
	case *AdvanceMember:
		return []textField{{"id", len(c.ServerID), MaxText}}
	case *AddQueue:
		return []textField{{"name", len(c.Name), MaxText}}
	case *RemoveQueue:
		return []textField{{"name", len(c.Name), MaxText}}
	case *PauseQueue:
		return []textField{{"name", len(c.Name), MaxText}}
	case *Hold:
		return []textField{{"holder", len(c.Holder), MaxText}}
	case *Restore:
		all := []textField{{"id", len(c.ID), MaxText}, {"source", len(c.Source), MaxReason}, {"data", len(c.Data), MaxRestorePart}, {"sha256", len(c.SHA256), MaxText}}
		for i := range c.Lanes {
			all = append(all, textField{"lane", len(c.Lanes[i]), MaxText})
		}
		return all
	}
	return slices.Concat(schemaFields(c), limitFields(c), operationFields(c))
}

// limitFields returns the texts of a command about limits, or the settings of a queue.
func limitFields(c Command) []textField {
	switch c := c.(type) {
	case *ChangeQueue:
		all := []textField{{"name", len(c.Name), MaxText}}
		for i := range c.Change.Weights {
			all = append(all, textField{"key", len(c.Change.Weights[i].Key), job.MaxLimitKeyLen})
		}
		return all
	case *SetLimit:
		all := []textField{{"name", len(c.Name), MaxText}}
		if c.Change.On != nil {
			for _, name := range c.Change.On.Names {
				all = append(all, textField{"on", len(name), job.MaxFaultNameLen})
			}
		}
		return all
	case *RemoveLimit:
		return []textField{{"name", len(c.Name), MaxText}}
	case *PauseLimit:
		return []textField{{"name", len(c.Name), MaxText}}
	}
	return nil
}

// operationFields returns the texts of a command about operations.
func operationFields(c Command) []textField {
	switch c := c.(type) {
	case *StartOperation:
		return []textField{
			{"query", len(c.Settings.Query), MaxOperationQuery}, {"params", len(c.Settings.Params), MaxOperationParams}, {"to", len(c.Settings.To), MaxText}, {"key", len(c.Settings.Key), MaxText},
		}
	case *StepOperation:
		all := []textField{{"waiting", len(c.Waiting), MaxReason}}
		for i := range c.Failures {
			all = append(all, textField{"failure", len(c.Failures[i].Text), MaxReason})
		}
		return all
	}
	return nil
}

func leaseFields(owner, id, until string) []textField {
	return []textField{{"owner", len(owner), MaxText}, {"lease_id", len(id), MaxText}, {"leased_until", len(until), MaxText}}
}

// schemaFields returns the texts of a command about schemas.
func schemaFields(c Command) []textField {
	named := func(queue, function string) []textField {
		return []textField{{"queue", len(queue), MaxText}, {"function", len(function), job.MaxFunctionLen}}
	}
	switch c := c.(type) {
	case *SetSchema:
		return append(named(c.Queue, c.Function), textField{"schema", len(c.Text), MaxSchemaText})
	case *RemoveSchema:
		return named(c.Queue, c.Function)
	}
	return nil
}

// memberFields returns the texts of m. An address is limited to the length of a
// host name and a port.
func memberFields(m *Member) []textField {
	const maxAddress = 262
	return []textField{
		{"member", len(m.Node), MaxText}, {"directory", len(m.Dir), MaxText},
		{"route", len(m.Route), maxAddress}, {"raft", len(m.Raft), maxAddress},
	}
}

// Check returns an error if c contains a text above its limit.
func Check(c Command) error {
	for _, t := range textFields(c) {
		if t.size > t.max {
			return fmt.Errorf("dispatch error: %s has %d bytes; at most %d", t.name, t.size, t.max)
		}
	}
	return nil
}

// TextBytes returns the total size of the texts of c, in bytes.
func TextBytes(c Command) (n int) {
	for _, t := range textFields(c) {
		n += t.size
	}
	return n
}
