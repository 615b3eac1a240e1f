package client

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A job that was stored as JSON is sent as it would have been sent at once.
func TestSpec_JSON(t *testing.T) {
	type item struct {
		Name  string    `json:"name"`
		Price float64   `json:"price"`
		Big   uint64    `json:"big"`
		Small int64     `json:"small"`
		At    time.Time `json:"at"`
		More  any       `json:"more"`
	}
	spec := func(params any) Spec { return Spec{Queue: "mail", Function: "send", Params: params} }
	for name, s := range map[string]Spec{
		"nothing":      {Queue: "mail"},
		"no params":    spec(nil),
		"empty struct": spec(struct{}{}),
		"struct": spec(item{
			Name: "ünï <&> \u2028\x00", Price: 19.99, Big: math.MaxUint64, Small: math.MinInt64, At: time.Unix(1, 5),
			More: []any{nil, true, 1e300, json.Number("1.50"), map[string]any{"b": 1, "a": map[int]string{7: "x"}}},
		}),
		"binary":  spec(map[string]any{"b": []byte{0, 255}, "n": 1}),
		"array":   spec([]int{1, -1}),
		"text":    spec("plain"),
		"integer": spec(int64(math.MaxInt64)),
		"nil":     spec((*item)(nil)),
		"all fields": NewSpec(greeting{"ann"}, Queue("q"), Key("k 1"), RunAt(time.Unix(2e9, 123456789)), Priority(0), MaxAttempts(7), Timeout(1500*time.Millisecond),
			RetryEvery(time.Minute), ResultTTL(time.Hour), RetryOnTimeout(false), Unique("u", time.Hour), OnConflict(UseExisting), RateLimit("r", time.Second),
			Trace(map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})),
		"labels": NewSpec(greeting{}, LimitKey("acme"), UseLimit("smtp", ""), UseLimit("api", "eu"), Tags("a"), Tags("b", "c"),
			Meta(map[string]string{"ticket": "7"}), ExpiresIn(90*time.Second)),
		"expiry":   NewSpec(greeting{}, ExpiresAt(time.Unix(2e9, 5).UTC())),
		"until":    NewSpec(greeting{}, UniqueUntil("u", "end")),
		"debounce": NewSpec(greeting{}, Debounce("d", time.Minute), Priority(9), RetryOnTimeout(true)),
	} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			var back Spec
			if err := json.Unmarshal(text, &back); err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			want, wantErr := s.message()
			got, gotErr := back.message()
			if !got.At.Equal(want.At) {
				t.Errorf("starts at %s, want %s", got.At, want.At)
			}
			got.At = want.At
			if wantErr != nil || gotErr != nil || !reflect.DeepEqual(got, want) || back.ExistingOnConflict != s.ExistingOnConflict {
				t.Errorf("%s\nis sent as %+v, %v\nwant %+v, %v", text, got, gotErr, want, wantErr)
			}
		})
	}
}

type greeting struct {
	To string `json:"to"`
}

func (greeting) Kind() string { return "greet" }

// What cannot be enqueued cannot be stored.
func TestSpec_MarshalJSONInvalid(t *testing.T) {
	for want, s := range map[string]Spec{
		"Queue is empty":         {},
		"queue name":             {Queue: "a.b"},
		"key is longer":          {Queue: "q", Key: strings.Repeat("k", 129)},
		"function has 257 bytes": {Queue: "q", Function: strings.Repeat("f", 257)},
		"a chan int cannot":      {Queue: "q", Params: make(chan int)},
		"outside a struct":       {Queue: "q", Params: 0.5},
		"unique_until":           {Queue: "q", UniqueKey: "u", UniqueUntil: "never"},
		"run_at":                 {Queue: "q", RunAt: time.Unix(1<<40, 0)},
	} {
		if _, err := s.MarshalJSON(); !errors.Is(err, ErrInvalidJob) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
}

func TestSpec_UnmarshalJSON(t *testing.T) {
	var s Spec
	if err := json.Unmarshal([]byte(` {"queue":"mail","id":"order-7","params":{"to":"ann"}} `), &s); err != nil || s.Queue != "mail" || s.Key != "order-7" {
		t.Errorf("written by hand: %+v, %v", s, err)
	}
	for text, want := range map[string]string{
		`{"queue":"q","delay_ms":5}`:                               "run_at",
		`{"queue":"q","function":"f","result_ttl_ms":-5}`:          "result_ttl_ms",
		`{"queue":"q","parms":{}}`:                                 "parms",
		`{"queue":"q","params":[1]}`:                               "JSON object",
		`{"queue":"q","payload_msgpack":"AAA="}`:                   "payload_msgpack",
		`{"queue":"q","params":{"a":1},"id":7}`:                    "string",
		`{"queue":"q","function":"f","timeout_ms":-1}`:             "timeout_ms",
		`{"queue":"q","function":"f","rate_limit_key":"r"}`:        "rate_limit",
		`{"params":{}}`:                                            "queue",
		`[]`:                                                       "array",
		`{"queue":"q","function":"f","priority":9000000000000000}`: "priority",
	} {
		if err := new(Spec).UnmarshalJSON([]byte(text)); !errors.Is(err, ErrInvalidJob) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if err := new(Spec).UnmarshalJSON([]byte(`{"queue":"q"} {}`)); err == nil {
		t.Error("two objects were taken for a job")
	}
}
