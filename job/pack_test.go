package job

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestPack checks that records come back from a message as they were packed, that each line
// is JSON for people who read the stream, and that a record which would not come back is not
// packable.
func TestPack(t *testing.T) {
	stored := time.Unix(7, 0)
	want := []Record{
		{Queue: "mail", Key: "0197c5a2-0000-7000-8000-000000000001", Stored: time.Unix(1764144000, 5), Body: []byte(`{"function":"send","params":{"at":5,"job":"x"}}`)},
		{Queue: "a-b_9", Key: "", Stored: time.Unix(1, 0), Body: []byte(`{}`)},
		{Queue: "mail", Key: "order 7", Stored: time.Unix(0, 0), Body: []byte(`{"params":{"id":"a","queue":"b","at":1,"job":{}}}`)},
		{Queue: "mail", Key: "k", Stored: time.Unix(2, 0), Body: []byte(`{"params":`)}, // invalid, which is for the ledger to say
		{Queue: "mail", Key: "k", Stored: time.Unix(3, 0), Body: []byte{}},
	}
	var message []byte
	for i := range want {
		r := &want[i]
		if r.Position = (Position{2, 42, uint8(i)}); !Packable(r.Key, r.Body) {
			t.Errorf("record %d is not packable", i)
		}
		before := len(message)
		message = AppendPacked(message, r.Queue, r.Key, r.Stored, r.Body)
		if size := PackedSize(r.Queue, r.Key, r.Body); len(message)-before > size {
			t.Errorf("record %d has %d bytes, and at most %d were announced", i, len(message)-before, size)
		}
	}
	want[len(want)-1].Last = true
	if got := Unpack(message, 2, 42, stored); !reflect.DeepEqual(got, want) {
		t.Errorf("unpacked %+v", got)
	}
	for i, line := range bytes.Split(message, []byte("\n"))[:3] {
		var fields struct {
			ID, Queue string
			At        int64
			Job       json.RawMessage
		}
		r := &want[i]
		if err := json.Unmarshal(line, &fields); err != nil || fields.ID != r.Key || fields.Queue != r.Queue || fields.At != r.Stored.UnixNano() || !bytes.Equal(fields.Job, r.Body) {
			t.Errorf("line %s: %+v, %v", line, fields, err)
		}
	}
	for name, r := range map[string]Record{
		"reference to a blob": {Body: []byte(`{"blob":{}}`)}, "line break": {Body: []byte("{\n}")}, "large body": {Body: bytes.Repeat([]byte(" "), maxPackedBody+1)},
		"quoted key": {Key: `a"b`}, "escaped key": {Key: `a\b`}, "key with a line break": {Key: "a\nb"}, "key beyond ASCII": {Key: "ü"},
	} {
		if Packable(r.Key, r.Body) {
			t.Errorf("%s: packable", name)
		}
	}
}

// TestUnpack_Damaged checks that a damaged line is rejected and the others of its message are
// not, and that every record has an id of its own.
func TestUnpack_Damaged(t *testing.T) {
	stored := time.Unix(7, 0)
	good := string(AppendPacked(nil, "mail", "", time.Unix(1, 0), []byte(`{"function":"f"}`)))
	for _, bad := range []string{
		"\n", "{}\n", strings.Replace(good, "queue", "qeueu", 1), strings.Replace(good, `:1000000000,`, `:1x,`, 1), strings.TrimSuffix(good, "}\n") + "\n",
	} {
		records := Unpack([]byte(good+bad+good), 0, 3, stored)
		if len(records) != 3 {
			t.Fatalf("%q: %d records", bad, len(records))
		}
		ids := map[ID]bool{}
		for i := range records {
			j, err := records[i].Job("L0", Defaults{})
			if (err != nil) != (i == 1) {
				t.Errorf("%q: record %d: %v", bad, i, err)
			}
			if ids[j.ID] = true; records[i].Position != (Position{0, 3, uint8(i)}) || !records[i].Matches(j.ID, "L0") {
				t.Errorf("%q: record %d is %+v", bad, i, records[i])
			}
		}
		if len(ids) != 3 {
			t.Errorf("%q: %d ids of 3 records", bad, len(ids))
		}
	}
	if got := Unpack([]byte(good+strings.TrimSuffix(good, "\n")), 0, 3, stored); len(got) != 2 || got[1].Invalid == nil {
		t.Errorf("a line that was cut off: %+v", got)
	}
	if got := Unpack([]byte(strings.Repeat(good, MaxPacked)), 0, 3, stored); len(got) != MaxPacked || !got[MaxPacked-1].Last {
		t.Errorf("%d records of the longest message", len(got))
	}
	if got := Unpack([]byte(strings.Repeat(good, MaxPacked+1)), 0, 3, stored); len(got) != MaxPacked || got[MaxPacked-1].Last {
		t.Errorf("%d records of a message that is too long, as if it were complete", len(got))
	}
	if got := Unpack(nil, 0, 3, stored); len(got) != 1 || got[0].Invalid == nil || !got[0].Last {
		t.Errorf("an empty message: %+v", got)
	}
}
