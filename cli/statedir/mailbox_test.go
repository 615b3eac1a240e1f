package statedir

import (
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"

	"golang.org/x/sys/unix"
)

const (
	message1  = `{"command":"CreateMailboxMessage","message_id":"m1","from_worker":"anna","to_worker":"ben","body":"<hello> \n"}`
	message2  = `{"command":"CreateMailboxMessage","message_id":"m2","from_worker":"ben","to_worker":"anna","body":""}`
	notifyM1  = `{"command":"MarkMailboxNotified","message_id":"m1"}`
	deliverM1 = `{"command":"MarkMailboxDelivered","message_id":"m1"}`
)

func messagesOf(t *testing.T, dir string) []message {
	t.Helper()
	messages, err := readRecords[message]([]byte(read(t, dir, mailboxFile)))
	if err != nil {
		t.Fatal(err)
	}
	return messages
}

// A message keeps its body and times through later commands, each of which is a
// process of its own. Its events have the original program's form.
func TestMailbox(t *testing.T) {
	dir := t.TempDir()
	begin := time.Now().UTC().Format(timeFormat)
	want(t, "created", do(t, dir, message1), `{"event":"MailboxMessageCreated","message_id":"m1","from_worker":"anna","to_worker":"ben"}`)
	want(t, "created again", do(t, dir, message1), `{"event":"MailboxMessageCreated","message_id":"m1","from_worker":"anna","to_worker":"ben"}`)
	want(t, "notified", do(t, dir, message2, notifyM1, notifyM1), `{"event":"MailboxNotified","message_id":"m1"}`)
	want(t, "delivered", do(t, dir, queueR1, deliverM1), `{"event":"MailboxDelivered","message_id":"m1"}`)
	do(t, dir, capture)

	got := messagesOf(t, dir)
	if len(got) != 2 || got[0].CreatedAt < begin || got[0].NotifiedAt == nil || got[0].DeliveredAt == nil || *got[0].DeliveredAt < *got[0].NotifiedAt {
		t.Fatalf("messages: %+v", got)
	}
	got[0].CreatedAt, got[0].NotifiedAt, got[0].DeliveredAt, got[1].CreatedAt = "", nil, nil, ""
	want(t, "messages", got, []message{
		{MessageID: "m1", FromWorker: "anna", ToWorker: "ben", Body: "<hello> \n"}, {MessageID: "m2", FromWorker: "ben", ToWorker: "anna"},
	})

	before := files(t, dir)
	for command, text := range map[string]string{
		notifyM1:  "mailbox error: mailbox message already delivered: m1",
		deliverM1: "mailbox error: mailbox message already delivered: m1",
		strings.Replace(message1, "hello", "bye", 1): "mailbox error: duplicate message id with other content: m1",
	} {
		if _, err := Exec(t.Context(), dir, []byte(command), false); err == nil || err.Error() != text {
			t.Errorf("%s: %v, want %q", command, err, text)
		}
	}
	want(t, "files after refusals", files(t, dir), before)
}

// With --compact, the events of delivered messages go, and a day later the messages.
func TestMailbox_Compact(t *testing.T) {
	dir := t.TempDir()
	do(t, dir, message1, message2, deliverM1)
	if _, err := Exec(t.Context(), dir, []byte(capture), true); err != nil {
		t.Fatal(err)
	}
	want(t, "events", tags(t, dir), []string{"MailboxMessageCreated", "SnapshotCaptured"})
	if got := messagesOf(t, dir); len(got) != 2 {
		t.Errorf("messages: %+v", got)
	}
	d, err := open(t.Context(), dir, unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	d.now = time.Now().Add(ledger.FinishedRetention + time.Second)
	apply, err := parse([]byte(capture))
	if err == nil {
		_, err = d.exec(apply, true)
	}
	d.close()
	if err != nil {
		t.Fatal(err)
	}
	if got := messagesOf(t, dir); len(got) != 1 || got[0].MessageID != "m2" {
		t.Errorf("messages a day later: %+v", got)
	}
}
