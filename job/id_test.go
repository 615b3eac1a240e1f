package job

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// keyVectors are published in docs/glossary.md, for programs that compute ids
// themselves. They never change.
var keyVectors = []struct{ queue, key, id string }{
	{"mail", "order-1001", "56116342-aac2-5599-9a58-8fc4074e78c2"},
	{"billing", "order-1001", "eef80240-dfcd-5ef8-9bdf-1c129a7a8e50"},
	{"mail", "Überweisung/7", "e51c16ba-964f-5e4b-9de9-edf8ad2dea3e"},
}

func TestKeyID_Vectors(t *testing.T) {
	space := uuid.UUID(namespace)
	for _, v := range keyVectors {
		id, err := KeyID(v.queue, v.key)
		if err != nil || id.String() != v.id {
			t.Errorf("id of %s in queue %s is %s, %v; want %s", v.key, v.queue, id, err, v.id)
		}
		if other := uuid.NewSHA1(space, []byte(v.queue+"\x00"+v.key)); other.String() != v.id {
			t.Errorf("UUIDv5 of %s in queue %s is %s, unlike the vector", v.key, v.queue, other)
		}
	}
}

func TestKeyID_UUIDIsItself(t *testing.T) {
	const text = "0190C3D2-5b1e-7cc0-98c4-dc0c0c07398f"
	for _, queue := range []string{"mail", "post"} {
		id, err := KeyID(queue, text)
		if err != nil || id.String() != strings.ToLower(text) {
			t.Errorf("%s in %s: %s, %v", text, queue, id, err)
		}
	}
}

func TestKeyID_Length(t *testing.T) {
	if _, err := KeyID("mail", strings.Repeat("k", MaxKeyLen)); err != nil {
		t.Errorf("longest key: %v", err)
	}
	if _, err := KeyID("mail", strings.Repeat("k", MaxKeyLen+1)); !errors.Is(err, ErrKeyTooLong) {
		t.Errorf("key that is too long: %v", err)
	}
}

func TestRecordID(t *testing.T) {
	stored := time.Date(2026, 3, 19, 2, 0, 0, 7, time.UTC)
	id := RecordID("L0", Position{Seq: 4}, stored)
	if id != RecordID("L0", Position{Seq: 4}, stored.In(time.FixedZone("", 3600))) {
		t.Error("the same record has two ids")
	}
	for name, other := range map[string]ID{
		"lane": RecordID("L1", Position{Seq: 4}, stored), "sequence": RecordID("L0", Position{Seq: 5}, stored),
		"time": RecordID("L0", Position{Seq: 4}, stored.Add(time.Nanosecond)), "index": RecordID("L0", Position{Seq: 4, Index: 1}, stored),
	} {
		if other == id {
			t.Errorf("record with another %s has the same id", name)
		}
	}
	if u := uuid.UUID(id); u.Version() != 8 || u.Variant() != uuid.RFC4122 {
		t.Errorf("%s has version %d, variant %s", id, u.Version(), u.Variant())
	}
}

func TestParseID(t *testing.T) {
	for _, bad := range []string{
		"", "x", "0190c3d25b1e7cc098c4dc0c0c07398f", "{0190c3d2-5b1e-7cc0-98c4-dc0c0c07398f}",
		"0190c3d2-5b1e-7cc0-98c4-dc0c0c07398", "0190c3d2-5b1e-7cc0-98c4-dc0c0c07398g", "0190c3d2x5b1e-7cc0-98c4-dc0c0c07398f",
	} {
		if id, err := ParseID(bad); !errors.Is(err, ErrBadID) || !id.IsZero() {
			t.Errorf("%q: %s, %v", bad, id, err)
		}
	}
	var id ID
	if err := id.UnmarshalText([]byte("0190c3d2-5b1e-7cc0-98c4-dc0c0c07398f")); err != nil || id.IsZero() {
		t.Errorf("%s, %v", id, err)
	}
	if err := id.UnmarshalText([]byte("no")); err == nil || id.IsZero() {
		t.Errorf("after an invalid text: %s, %v", id, err)
	}
	if text, err := id.MarshalText(); err != nil || string(text) != id.String() {
		t.Errorf("%s, %v", text, err)
	}
}

// The vectors were computed with Python's uuid.uuid5 from the text of the request id.
func TestDispatchID_UUID(t *testing.T) {
	id, err := ParseID("0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10")
	if err != nil {
		t.Fatal(err)
	}
	for d, want := range map[DispatchID]string{
		{id, 2}:                "9717c7f5-fea1-5263-8c7e-cf14eb8af7c7",
		{ID{}, math.MaxUint32}: "88dc3342-0918-5bec-8e9d-ba44571d1cbe",
	} {
		if got := d.UUID().String(); got != want {
			t.Errorf("%s has the UUID %s, want %s", RequestID(d.Job, d.N), got, want)
		}
	}
}

func TestRequestID_RoundTrip(t *testing.T) {
	id := RecordID("L0", Position{Seq: 1}, time.Unix(1, 0))
	for _, n := range []uint32{1, 9, 10, 1234567890, math.MaxUint32} {
		text := RequestID(id, n)
		if back, m, ok := ParseRequestID(text); !ok || back != id || m != n {
			t.Errorf("%s parsed as %s, %d, %t", text, back, m, ok)
		}
	}
	for _, bad := range []string{
		"", id.String(), id.String() + "#", id.String() + "#0", id.String() + "#01", id.String() + "#4294967296",
		id.String() + "#-1", id.String() + "#1 ", strings.ToUpper(id.String()) + "#1", id.String() + ":1", "req-1#1",
		id.String() + "#99999999999999999999",
	} {
		if _, _, ok := ParseRequestID(bad); ok {
			t.Errorf("%q accepted as a request id", bad)
		}
	}
}

func FuzzParseRequestID(f *testing.F) {
	f.Add("0190c3d2-5b1e-7cc0-98c4-dc0c0c07398f#12")
	f.Add("0190C3D2-5b1e-7cc0-98c4-dc0c0c07398f#1")
	f.Fuzz(func(t *testing.T, text string) {
		if id, n, ok := ParseRequestID(text); ok && RequestID(id, n) != text {
			t.Errorf("%q parsed and written again is %q", text, RequestID(id, n))
		}
	})
}

// TestKeyID_NilUUID checks that the nil UUID is refused as a key: a record with it is rejected, with an
// id from its position. Other special UUIDs are valid keys.
func TestKeyID_NilUUID(t *testing.T) {
	const nilKey, maxKey = "00000000-0000-0000-0000-000000000000", "FFFFFFFF-ffff-ffff-ffff-ffffffffffff"
	if id, err := KeyID("mail", nilKey); !errors.Is(err, ErrNilKey) || !id.IsZero() {
		t.Errorf("the nil UUID: %s, %v", id, err)
	}
	if id, err := KeyID("mail", maxKey); err != nil || id.String() != strings.ToLower(maxKey) {
		t.Errorf("the max UUID: %s, %v", id, err)
	}
	r := Record{Queue: "mail", Key: nilKey, Stored: time.Unix(1, 0), Body: []byte(`{"function":"f"}`)}
	j, err := r.Job("L", Defaults{})
	var invalid *InvalidError
	if j.ID != RecordID("L", r.Position, r.Stored) || !errors.As(err, &invalid) || !strings.Contains(invalid.Reason, "the nil UUID") {
		t.Errorf("its record is rejected as %s: %v", j.ID, err)
	}
	if !r.Matches(ID{}, "L") {
		t.Error("the record is not that of the job that an earlier build made of it")
	}
}
