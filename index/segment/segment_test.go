package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
)

var epoch = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// randomDocument returns a document with few different values, so that queries match some, and
// many have equal times.
func randomDocument(r *rand.Rand, seconds int) *job.Document {
	pick := func(texts ...string) string { return texts[r.IntN(len(texts))] }
	d := &job.Document{
		Queue: pick("mail", "main", "bulk"), Function: pick("send", "resize"), Key: pick("", "a", "ab", "k1", "é"), LimitKey: pick("", "a", "acme"),
		State: job.State(1 + r.IntN(job.States-1)), Priority: uint8(r.IntN(10)), Attempts: uint32(r.IntN(4)), Dispatches: uint32(r.IntN(5)),
		Node: pick("", "n1", "n2"), Worker: pick("overhop/1", "overhop/12", "rrq/p/1"),
		Created: epoch.Add(time.Duration(r.IntN(seconds)) * time.Second),
	}
	for i := range d.ID {
		d.ID[i] = byte(r.UintN(256))
	}
	d.ID[0] %= 4 // so that short prefixes match many
	if r.IntN(4) == 0 {
		d.RunAt, d.MaxAttempts = d.Created.Add(time.Duration(r.IntN(9)-2)*time.Second), uint32(r.IntN(9))
	}
	if r.IntN(4) > 0 {
		d.Started = d.Created.Add(time.Duration(r.IntN(5)) * time.Second)
	}
	if d.State.Ended() {
		d.Ended = d.Created.Add(time.Duration(5+r.IntN(5))*time.Second + time.Duration(r.IntN(3))*time.Nanosecond)
		d.Result, d.ResultTTL = r.Uint64N(3)*1e6, time.Duration(r.IntN(2))*time.Hour
		d.Position = job.Position{Lane: uint8(r.IntN(256)), Seq: r.Uint64N(1e9), Index: uint8(r.IntN(3))}
	}
	for range r.IntN(3) {
		d.Tags = append(d.Tags, pick("eu", "us", "big one", "eu"))
	}
	if r.IntN(2) == 0 {
		d.Meta = []job.Label{{Name: "customer", Value: pick("acme", "ac", "zeta")}}
	}
	if r.IntN(2) == 0 {
		d.Params = []job.Label{{Name: "customer", Value: pick("acme", "b")}, {Name: "to.name", Value: pick("Ann", "Bob")}}
	}
	if r.IntN(2) == 0 {
		d.Fault = &job.Fault{Type: pick("Timeout", "", "SMTPError"), Code: pick("", "E1"), Message: pick("smtp: 550 mailbox full", "connection refused", "", "Mailbox moved")}
	}
	if d.State == job.Cancelled {
		d.Cancellation = &job.Cancellation{Actor: "ann", Door: "http", Reason: "twice", At: d.Created}
	}
	return d
}

var terms = []string{
	"queue:mail", "queue:ma*", "-queue:bulk", "function:send,x", "state:failed", "state:completed,expired", "key:a", "key:a*", "-key:*", "limit_key:acme",
	"tag:eu", "tag:*", `tag:"big one"`, "customer:acme", "meta.customer:ac*", "params.customer:b", "to.name:A*", "error:timeout", "error:e*", "text:mailbox", `text:"full smtp"`,
	`text:"550 mail"*`, "node:n1", "-node:*", "worker:overhop/1", "worker:overhop/1*", "priority:>5", "attempts:2..3", "dispatches:0", "created:>=2026-11-26T12:00:10", "created:2026-11-26T12:00",
	"started:<2026-11-26T12:00:20", "-ended:<2030-01-01", "since:2026-11-26T12:00:25", "took:>3s", "took:0s..3s", "-took:>=0s", "id:0*", "id:03a*", "id:*", "a*", "mailbox", "acme", "*", "nothing", "id:ffffffff-ffff-ffff-ffff-ffffffffffff",
}

// randomQuery returns a query of up to five terms.
func randomQuery(r *rand.Rand) *query.Query {
	var b strings.Builder
	for i := range r.IntN(6) {
		if i > 0 {
			b.WriteString([]string{" ", " ", " or "}[r.IntN(3)])
		}
		term := terms[r.IntN(len(terms))]
		switch r.IntN(6) {
		case 0:
			term = "-(" + term + " or " + terms[r.IntN(len(terms))] + ")"
		case 1:
			term = "(" + term + " " + terms[r.IntN(len(terms))] + ")"
		case 2:
			term = "(" + term + " or " + terms[r.IntN(len(terms))] + ")"
		}
		b.WriteString(term)
	}
	b.WriteString([]string{"", " sort:created", " sort:ended", " sort:-ended"}[r.IntN(4)])
	text := strings.ReplaceAll(b.String(), "-took:>=0s", "-took:>=0s")
	q, err := query.Parse(text, query.Options{Now: epoch})
	if err != nil {
		panic(err)
	}
	return q
}

// open writes a segment of documents and opens it.
func open(t testing.TB, docs []*job.Document) *Segment {
	t.Helper()
	docs = slices.Clone(docs)
	Sort(docs)
	var b bytes.Buffer
	if err := Write(&b, docs); err != nil {
		t.Fatal(err)
	}
	s, err := Open(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// expect returns the page that Search should return, by looking at all documents.
func expect(q *query.Query, after *Cursor, limit int, docs []*job.Document) *Page {
	at := func(d *job.Document) Cursor { return Cursor{q.Sort.Value(d), d.ID} }
	var found []*job.Document
	for _, d := range docs {
		if q.Match(d) && (after == nil || at(d).follows(*after, q.Sort)) {
			found = append(found, d)
		}
	}
	slices.SortFunc(found, func(a, b *job.Document) int {
		if at(b).follows(at(a), q.Sort) {
			return -1
		}
		return 1
	})
	page := &Page{Documents: found}
	if len(found) > limit {
		next := at(found[limit-1])
		page.Documents, page.Next = found[:limit], &next
	}
	return page
}

func inMemory(docs []*job.Document) (m Memory) {
	for _, d := range docs {
		m.Add(d)
	}
	return m
}

// shuffle returns sources that have the documents: segments, some documents of which are deleted, and
// a Memory.
func shuffle(t testing.TB, r *rand.Rand, docs []*job.Document) []Source {
	var sources []Source
	rest := slices.Clone(docs)
	if r.IntN(2) == 0 {
		Sort(rest)
	}
	for len(rest) > 0 {
		n := 1 + r.IntN(len(rest))
		part := slices.Clone(rest[:n])
		rest = rest[n:]
		if r.IntN(4) == 0 {
			sources = append(sources, inMemory(part))
			continue
		}
		for range r.IntN(3) {
			part = append(part, randomDocument(r, 30))
		}
		s := open(t, part)
		deleteDocuments(t, s, part[n:])
		again := open(t, part)
		if err := again.SetDeleted(s.Deleted()); err != nil || again.Count() != n {
			t.Fatalf("%d documents, %v, want %d", again.Count(), err, n)
		}
		sources = append(sources, again)
	}
	return sources
}

// deleteDocuments deletes documents that the segment has.
func deleteDocuments(t testing.TB, s *Segment, docs []*job.Document) {
	var places, others []Cursor
	for _, d := range docs {
		places = append(places, Cursor{d.Created.UnixNano(), d.ID})
		others = append(others, Cursor{d.Created.UnixNano() + 1, d.ID})
	}
	for _, list := range [][]Cursor{places, others} {
		slices.SortFunc(list, Cursor.Compare)
	}
	var numbers []int
	err := s.Lookup(places, func(number int) { numbers = append(numbers, number) })
	if err != nil || len(numbers) != len(docs) {
		t.Fatalf("%d of %d documents are there, %v", len(numbers), len(docs), err)
	}
	if err := s.Lookup(others, func(int) { t.Error("a document that is not there") }); err != nil {
		t.Fatal(err)
	}
	s.DeleteNumbers(numbers)
}

// checkPages checks all pages of a query. Between them the documents move to other sources, and some are
// removed and added.
func checkPages(t testing.TB, r *rand.Rand, q *query.Query, docs []*job.Document) {
	t.Helper()
	var after *Cursor
	for {
		limit := 1 + r.IntN(20)
		got, err := Search(context.Background(), q, after, limit, shuffle(t, r, docs)...)
		if err != nil {
			t.Fatal(err)
		}
		if want := expect(q, after, limit, docs); !reflect.DeepEqual(got, want) {
			t.Fatalf("%s after %v of %d documents: %d documents and %v, want %d and %v", q, after, len(docs), len(got.Documents), got.Next, len(want.Documents), want.Next)
		}
		if after = got.Next; after == nil {
			return
		}
		docs = slices.Delete(slices.Clone(docs), 0, r.IntN(len(docs))/4)
		docs = append(docs, randomDocument(r, 30))
	}
}

// TestSearch checks random queries of random documents against looking at all of them.
func TestSearch(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		docs := make([]*job.Document, rapid.IntRange(0, 200).Draw(rt, "documents"))
		for i := range docs {
			docs[i] = randomDocument(r, 1+r.IntN(60))
		}
		for range 5 {
			checkPages(t, r, randomQuery(r), docs)
		}
	})
}

// TestManyDocuments checks segments of many chunks of each kind.
func TestManyDocuments(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var docs []*job.Document
	var sources []Source
	for i, n := range []int{20_000, 70, 9_000} {
		var part []*job.Document
		for k := range n {
			d := randomDocument(r, 3000)
			d.Created = d.Created.Add(time.Duration(i*2000) * time.Second)
			d.Key = fmt.Sprintf("k%d", k)
			if k%2 == 0 {
				d.Params = append(d.Params, job.Label{Name: "n", Value: fmt.Sprint(r.IntN(3000))})
			}
			part = append(part, d)
		}
		docs = append(docs, part...)
		sources = append(sources, open(t, part))
	}
	queries := []string{"-key:*", "n:* state:failed", "params.n:* -meta.customer:*", "key:k12345", "key:k1* params.n:1*", "n:17 key:k*", "k12* state:failed", "id:01*", "id:01* state:failed n:1*", "created:2026-11-26T12:30..12:31 sort:ended", "-took:<5s sort:created"}
	for range 30 {
		queries = append(queries, randomQuery(r).String())
	}
	for _, text := range queries {
		q, err := query.Parse(text, query.Options{Now: epoch})
		if err != nil {
			t.Fatal(err)
		}
		var after *Cursor
		for range 3 {
			got, err := Search(t.Context(), q, after, 100, sources...)
			if err != nil {
				t.Fatal(err)
			}
			if want := expect(q, after, 100, docs); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s after %v: %d documents and %v, want %d and %v", q, after, len(got.Documents), got.Next, len(want.Documents), want.Next)
			}
			if after = got.Next; after == nil {
				break
			}
		}
	}
}

// TestPrefixes checks prefixes whose terms are in many chunks.
func TestPrefixes(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	random := func(letters string, n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = letters[r.IntN(len(letters))]
		}
		return string(b)
	}
	var docs []*job.Document
	for range 2000 {
		d := randomDocument(r, 1000)
		d.Params = nil
		for i := range 8 {
			text := random("abcd", 2) + random("efghijklmnopqrstuvwxyz", 4)
			if i%2 == 0 {
				text += random("efghijklmnopqrstuvwxyz", 400) // so that few terms are in a chunk
			}
			d.Params = append(d.Params, job.Label{Name: fmt.Sprintf("v%d", i), Value: text})
		}
		docs = append(docs, d)
	}
	s := open(t, docs)
	for i := range 8 {
		for _, prefix := range []string{"", "a", "b", "c", "d", "ab", "cd", "dd", "e"} {
			q, err := query.Parse(fmt.Sprintf("v%d:%s*", i, prefix), query.Options{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := Search(t.Context(), q, nil, len(docs), s)
			if err != nil {
				t.Fatal(err)
			}
			if want := expect(q, nil, len(docs), docs); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %d documents, want %d", q, len(got.Documents), len(want.Documents))
			}
		}
	}
}

// TestDocument checks that a document is decoded as it was encoded, and that no part of it is
// taken for a document.
func TestDocument(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		d := randomDocument(r, 100)
		if d.Fault != nil {
			d.Fault.Details = []byte(`{"a":1}`)
		}
		b := AppendDocument(nil, d)
		if got, err := ParseDocument(b); err != nil || !reflect.DeepEqual(got, d) {
			t.Fatalf("%v, %v, want %v", got, err, d)
		}
		for n := range len(b) {
			if got, err := ParseDocument(b[:n]); err == nil {
				t.Fatalf("%d of %d bytes are %v", n, len(b), got)
			}
		}
	}
}

// TestDamage flips a bit at a time, and checks that Open or Search fails unless the answer is right.
func TestDamage(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var docs []*job.Document
	for range 400 {
		docs = append(docs, randomDocument(r, 30))
	}
	Sort(docs)
	var b bytes.Buffer
	if err := Write(&b, docs); err != nil {
		t.Fatal(err)
	}
	var queries []*query.Query
	var answers []*Page
	for range 20 {
		q := randomQuery(r)
		queries, answers = append(queries, q), append(answers, expect(q, nil, 50, docs))
	}
	found, flipped := 0, 0
	for i := 0; i < b.Len(); i += 1 + r.IntN(5) {
		flipped++
		damaged := slices.Clone(b.Bytes())
		damaged[i] ^= 1 << r.IntN(8)
		if i%3 == 0 {
			damaged = damaged[:i]
		}
		s, err := Open(bytes.NewReader(damaged), int64(len(damaged)))
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("byte %d: %v", i, err)
			}
			found++
			continue
		}
		k := i % len(queries)
		got, err := Search(t.Context(), queries[k], nil, 50, s)
		switch {
		case errors.Is(err, ErrDamaged):
			found++
		case err != nil || !reflect.DeepEqual(got, answers[k]):
			t.Fatalf("byte %d: %s returns %v, %v", i, queries[k], got, err)
		}
	}
	if found < flipped/2 {
		t.Errorf("damage of %d of %d bytes was found", found, flipped)
	}
}

// TestWrite_Refuses checks that segments of too few and too many documents are refused, and of unsorted ones.
func TestWrite_Refuses(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	unsorted := []*job.Document{randomDocument(r, 30), randomDocument(r, 30)}
	Sort(unsorted)
	slices.Reverse(unsorted)
	for reason, docs := range map[string][]*job.Document{
		"none": nil, "too many": make([]*job.Document, MaxDocuments+1), "not in order": unsorted,
	} {
		if err := Write(&bytes.Buffer{}, docs); err == nil {
			t.Errorf("%s: documents are accepted", reason)
		}
	}
}
