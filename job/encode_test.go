package job

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"
)

// encodeTexts are strings, keys and parts of params of the kinds that encoding/json treats
// differently.
var encodeTexts = []string{
	"", "plain", "two words", `quo"te`, `back\slash`, "tab\tnew\nline\x00\x1f\x7f", "<b>&amp;</b>", "ünï – “x”", "line\u2028and\u2029paragraph",
	"bad \xff\xfe utf-8 \xe2\x80", "\xe2", "\U0001F600", "\ufffd", "\u2027\u202a",
}

// encodeParams are params in forms that are copied, compacted, escaped, and refused.
var encodeParams = []string{
	`{}`, ` { } `, `{"to":"ann","n":[1,-2.5e+3,0,true,false,null]}`, "{ \"a\" : [ 1 , 2 ],\t\"b\" :\r\n{ \"c d\" : \"e  f\" } }",
	`{"a":"\u0041\u2028\\\"\/","b":"\\"}`, `{"html":"<a href=\"x\">&</a>"}`, "{\"a\":\"\u2028\u2029\u2027 – \xe2\x80\"}", "{\"a\":\"\xff\"}", "{\"a\":\"\xe2\"}",
	`{"a":1`, `{"a":1}x`, `{"a":01}`, `{"a":"\x"}`, "{\"a\":\"\n\"}", `[1]`, ` [ 1 ] `, `"text"`, `null`, ` `, `{"a":tru}`,
}

// randomSpec returns a spec in which each field is set or not.
func randomSpec(rnd *rand.Rand) Spec {
	text := func() string {
		return encodeTexts[rnd.IntN(len(encodeTexts))] + encodeTexts[rnd.IntN(len(encodeTexts))]
	}
	optText := func() *string {
		if rnd.IntN(4) > 0 {
			return nil
		}
		return new(text())
	}
	optInt := func() *int64 {
		switch rnd.IntN(8) {
		case 0:
			return new(int64(rnd.Uint64()))
		case 1:
			return new(rnd.Int64N(20) - 5)
		}
		return nil
	}
	s := Spec{
		DelayMS: optInt(), Priority: optInt(), MaxAttempts: optInt(), TimeoutMS: optInt(), RetryInterval: optInt(), ResultTTLMS: optInt(),
		UniqueKey: optText(), UniqueTTLMS: optInt(), UniqueUntil: optText(), RateLimitKey: optText(), RateLimitMS: optInt(), DebounceKey: optText(), DebounceMS: optInt(),
		LimitKey: optText(), Key: optText(), ExpiresInMS: optInt(),
	}
	if rnd.IntN(2) == 0 {
		s.Function = text()
	}
	if rnd.IntN(2) == 0 {
		s.Params = json.RawMessage(encodeParams[rnd.IntN(len(encodeParams))])
	}
	if rnd.IntN(4) == 0 {
		s.Payload = make([]byte, rnd.IntN(10))
		for i := range s.Payload {
			s.Payload[i] = byte(rnd.Uint32())
		}
	}
	if rnd.IntN(4) == 0 {
		s.RunAt = randomTime(rnd)
	}
	if rnd.IntN(8) == 0 {
		s.ExpiresAt = randomTime(rnd)
	}
	if rnd.IntN(4) == 0 {
		s.RetryOnTimeout = new(rnd.IntN(2) == 0)
	}
	for _, texts := range []*map[string]string{&s.Trace, &s.Limits, &s.Meta} {
		if rnd.IntN(4) == 0 {
			*texts = map[string]string{}
			for range rnd.IntN(4) {
				(*texts)[text()] = text()
			}
		}
	}
	if rnd.IntN(4) == 0 {
		for range rnd.IntN(4) {
			s.Tags = append(s.Tags, text())
		}
	}
	if rnd.IntN(10) == 0 {
		s.Blob = &Blob{Name: text(), Chunks: 1, Size: 2, SHA256: text()}
	}
	return s
}

// randomTime returns a time, which has perhaps no form in JSON.
func randomTime(rnd *rand.Rand) *time.Time {
	zone := time.FixedZone("", rnd.IntN(200_000)-100_000)
	return new(time.Unix(rnd.Int64N(1<<38)-1<<35, rnd.Int64N(1e9)).In(zone))
}

// TestSpec_Encode checks that Encode returns what encoding/json does, errors included.
func TestSpec_Encode(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	fast := 0
	for range 50_000 {
		s := randomSpec(rnd)
		checkEncode(t, &s)
		if _, ok := s.encode(); ok {
			fast++
		}
	}
	if fast < 25_000 {
		t.Errorf("only %d jobs were encoded without encoding/json", fast)
	}
}

func checkEncode(t *testing.T, s *Spec) {
	t.Helper()
	want, wantErr := json.Marshal(*s)
	got, err := s.Encode()
	if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
		t.Fatalf("%+v: error %v, want %v", s, err, wantErr)
	}
	if string(got) != string(want) {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
}

// FuzzSpec_Encode is TestSpec_Encode for any function and params.
func FuzzSpec_Encode(f *testing.F) {
	for _, params := range encodeParams {
		f.Add("f", []byte(params))
	}
	for _, text := range encodeTexts {
		f.Add(text, []byte(nil))
	}
	f.Fuzz(func(t *testing.T, function string, params []byte) {
		checkEncode(t, &Spec{Function: function, Params: params})
	})
}
