package overhop

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// vector is a frame in testdata, and its expected content.
type vector struct {
	name  string
	frame []byte
	want  any // content of its JSON file, numbers as written
}

// vectors reads a directory of testdata.
func vectors(t testing.TB, dir string) (all []vector) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.hex"))
	if err != nil || len(files) < 15 {
		t.Fatalf("%d files in testdata/%s: %v", len(files), dir, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		v := vector{name: strings.TrimSuffix(filepath.Base(file), ".hex"), frame: decodeHex(t, string(text))}
		if dir == "accept" || dir == "frames" && !strings.HasSuffix(v.name, "-unsorted") {
			v.want = readJSON(t, strings.TrimSuffix(file, ".hex")+".json")
		}
		all = append(all, v)
	}
	return all
}

func readJSON(t testing.TB, file string) (content any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&content); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return content
}

// plain converts a value of a JSON file to one for AppendValue.
func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		n, err := v.Int64()
		if err != nil {
			panic(err)
		}
		return n
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
		return v
	case map[string]any:
		if text, ok := v["$bin"].(string); ok && len(v) == 1 {
			b, err := hex.DecodeString(text)
			if err != nil {
				panic(err)
			}
			return b
		}
		fields := Fields{}
		for k := range v {
			fields[k] = plain(v[k])
		}
		return fields
	}
	return v
}

// rendered returns a value as the JSON files represent it. Of a repeated key
// the last value counts.
func rendered(r Raw) any {
	switch r.Kind() {
	case KindBool:
		v, _ := r.Bool()
		return v
	case KindInt:
		v, _ := r.Int()
		return json.Number(fmt.Sprint(v))
	case KindStr:
		v, _ := r.Str()
		return v
	case KindBin:
		v, _ := r.Bin()
		return map[string]any{"$bin": hex.EncodeToString(v)}
	case KindArray:
		list := []any{}
		for item := range r.Items() {
			list = append(list, rendered(item))
		}
		return list
	case KindMap:
		fields := map[string]any{}
		for k, v := range r.Pairs() {
			fields[string(k)] = rendered(v)
		}
		return fields
	}
	return nil
}

// asText returns a value as JSON, for comparison.
func asText(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// The files in testdata/frames are frames in the form that this package writes.
// Decoding them yields the content of their JSON files, and encoding that
// yields the frames.
func TestGoldenFrames(t *testing.T) {
	seen := map[int64]bool{}
	for _, v := range vectors(t, "frames") {
		e, err := ParseEnvelope(v.frame[4:])
		if err != nil {
			t.Errorf("%s: %v", v.name, err)
			continue
		}
		seen[e.T] = true
		if err := parseRequest(e); err != nil {
			t.Errorf("%s is refused: %v", v.name, err)
		}
		if v.want == nil {
			continue
		}
		if want, got := asText(v.want), asText(rendered(v.frame[4:])); want != got {
			t.Errorf("%s contains\n%s\nits JSON file\n%s", v.name, got, want)
		}
		if got := frame.Append(nil, AppendValue(nil, plain(v.want))); !bytes.Equal(got, v.frame) {
			t.Errorf("the JSON of %s is written as\n%x, want\n%x", v.name, got, v.frame)
		}
		if got := AppendMessage(nil, e.T, e.RID, e.P); !bytes.Equal(got, v.frame) {
			t.Errorf("%s is framed again as\n%x", v.name, got)
		}
		var theirs any
		if err := msgpack.Unmarshal(v.frame[4:], &theirs); err != nil {
			t.Errorf("the other library refuses %s: %v", v.name, err)
		}
	}
	for _, block := range [][2]int64{{THello, TQStats}, {TAck, TAPI}, {TOK, TPong}, {TQuest, TJobEnd}} {
		for n := block[0]; n <= block[1]; n++ {
			if !seen[n] {
				t.Errorf("no file under testdata/frames has t=%d", n)
			}
		}
	}
}

// parseRequest parses a request's payload as a server does.
func parseRequest(e Envelope) error {
	p := e.P
	switch e.T {
	case TRegister, TPing, TLsQueue, TStatus:
		return ParseEmpty(p)
	case TQueue, TRmQueue, TPause, TResume, TQStats:
		return second(ParseQueueName(p))
	case TSubscribe:
		return second(ParseSubscribe(p))
	case TUnsubscribe:
		return second(ParseUnsubscribe(p))
	case TCredit:
		return second(ParseCredit(p))
	case TAddQueue:
		return second(ParseAddQueue(p))
	case TSetJob:
		return second(ParseSetJob(p))
	case TSetQueue:
		return second(ParseSetQueue(p))
	case TContent:
		return second(ParseContent(p))
	case TAPI:
		return second(ParseAPI(p))
	case TEnqueue:
		return second(ParseEnqueue(p, true))
	case TJob, TRmJob, TRetryJob:
		return second(ParseJobRef(p))
	case TLsJob:
		return second(ParseListJobs(p))
	case TAck:
		return second(ParseLeaseRef(p))
	case TNack:
		return second(ParseNack(p))
	case TBeat:
		return second(ParseBeat(p))
	case TProgress:
		return second(ParseProgress(p))
	case TLog:
		return second(ParseLog(p))
	case TDone:
		return second(ParseDone(p))
	case TFail:
		return second(ParseFail(p))
	case TGoodbye:
		return second(ParseGoodbye(p))
	case TQuest:
		return second(ParseQuest(p))
	}
	return nil
}

// The Append functions write the frames in testdata.
func TestGoldenFrames_Encode(t *testing.T) {
	now := time.Date(2026, 2, 23, 10, 18, 33, 0, time.UTC)
	quest := Quest{
		JID: "jobs:0190a5b2-0000-7000-8000-000000000001", Queue: "jobs", SID: "7b3c6a52-4f6e-4a51-9c1e-1d1a3a2b4c5d",
		Token: [16]byte{7: 1, 15: 9}, Fence: 42, Attempt: 1, MaxAttempts: 5, Params: []byte(`{"n":1}`),
		Created: now, RunAt: now, AckBy: now.Add(5 * time.Second), LeaseUntil: now.Add(6 * time.Second),
		Lease: 6 * time.Second, Beat: 2 * time.Second, Credits: 3,
	}
	full := quest
	full.Function, full.Deadline, full.MaxAttempts, full.Redelivered = "handler", full.LeaseUntil, 0, true
	full.Attempt, full.Credits, full.Fence, full.Trace = 2, 0, 1<<63-1, map[string]string{"traceparent": "00-1"}
	full.Payload = AppendValue(nil, []any{[]byte{0, 0xff}, int64(-1 << 63)})
	questFrame, err := AppendQuest(nil, &quest, DefaultFrameLimit)
	fullFrame, err2 := AppendQuest(nil, &full, DefaultFrameLimit)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][]byte{
		"hi":              AppendHi(nil, "1", Hello{}, "", 0),
		"hi-delivery":     AppendHi(nil, "1", Hello{Delivery: true}, "n1", DefaultFrameLimit),
		"ident":           AppendIdent(nil, 2*time.Second, now),
		"pong":            AppendPong(nil, "p", now),
		"ok":              AppendOK(nil, "r", EmptyMap),
		"err":             AppendErr(nil, "e", CodeQueueNotFound, "queue does not exist", nil),
		"err-unavailable": AppendErr(nil, "e", CodeUnavailable, "no quorum", Fields{"retry_after_ms": 1000}),
		"quest":           questFrame,
		"quest-full":      fullFrame,
	} {
		text, err := os.ReadFile(filepath.Join("testdata", "frames", name+".hex"))
		if err != nil {
			t.Error(err)
		} else if want := decodeHex(t, string(text)); !bytes.Equal(got, want) {
			t.Errorf("%s is\n%x, want\n%x", name, got, want)
		}
	}
}

// Frames in other valid forms have the same meaning.
func TestGoldenFrames_Accepted(t *testing.T) {
	for _, v := range vectors(t, "accept") {
		if _, err := ParseEnvelope(v.frame[4:]); err != nil {
			t.Errorf("%s is refused: %v", v.name, err)
			continue
		}
		if want, got := asText(v.want), asText(rendered(v.frame[4:])); want != got {
			t.Errorf("%s contains\n%s\nits JSON file\n%s", v.name, got, want)
		}
		if ours := AppendValue(nil, plain(v.want)); !bytes.Equal(canonical(nil, v.frame[4:]), ours) {
			t.Errorf("the canonical form of %s is %x, want %x", v.name, canonical(nil, v.frame[4:]), ours)
		}
	}
	for _, name := range []string{"subscribe", "enqueue"} {
		var frames [2][]byte
		for i, suffix := range []string{"", "-unsorted"} {
			text, err := os.ReadFile("testdata/frames/" + name + suffix + ".hex")
			if err != nil {
				t.Fatal(err)
			}
			frames[i] = canonical(nil, decodeHex(t, string(text))[4:])
		}
		if !bytes.Equal(frames[0], frames[1]) {
			t.Errorf("%s differs from its unsorted form", name)
		}
	}
}

// Invalid frames are refused for the reason given in reasons.tsv.
func TestGoldenFrames_Rejected(t *testing.T) {
	text, err := os.ReadFile("testdata/reject/reasons.tsv")
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, reason, ok := strings.Cut(line, "\t"); ok {
			reasons[name] = reason
		}
	}
	for _, v := range vectors(t, "reject") {
		stage, _, _ := strings.Cut(reasons[v.name], ":")
		delete(reasons, v.name)
		payload, err := frame.NewReader(bytes.NewReader(v.frame), DefaultFrameLimit).Next()
		got := "framing"
		var large *frame.TooLargeError
		if err == nil {
			_, err = ParseEnvelope(payload)
			got = "envelope"
		} else if !errors.Is(err, frame.ErrZeroLength) && !errors.As(err, &large) {
			got = "nothing (incomplete frame)"
		}
		var codec *CodecError
		if errors.As(err, &codec) {
			got = "codec"
		}
		if err == nil || errors.Is(err, io.EOF) || got != stage {
			t.Errorf("%s is refused by %s (%v), want %s", v.name, got, err, stage)
		}
	}
	for name := range reasons {
		t.Errorf("reasons.tsv lists %s, which does not exist", name)
	}
}
