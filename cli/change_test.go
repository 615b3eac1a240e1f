package cli

import (
	"strings"
	"sync/atomic"
	"testing"

	"yardmaster/cluster"

	"github.com/google/go-cmp/cmp"
)

func changeFake(t *testing.T) *fakeYard {
	page := func(question []byte) ([]byte, error) {
		switch {
		case strings.Contains(string(question), `"waiting"`) && strings.Contains(string(question), `"page":1,`):
			return []byte(`{"jobs":[{"id":"w1","state":"waiting","function":"send"},{"id":"w2","state":"waiting","function":"other"}]}`), nil
		case strings.Contains(string(question), `"active"`):
			return []byte(`{"jobs":[{"id":"a1","state":"active","function":"send"},{"id":"gone","state":"active","function":"send"}]}`), nil
		}
		return []byte(`{"jobs":[]}`), nil
	}
	return startFake(t, answers{
		"yard.api.v1.job.list": page,
		"yard.api.v1.job.cancel": func(question []byte) ([]byte, error) {
			if strings.Contains(string(question), "gone") {
				return nil, &cluster.APIError{Code: "409", Text: "job has ended already"}
			}
			if strings.Contains(string(question), "away") {
				return nil, &cluster.APIError{Code: "503", Text: "yard is unavailable: no authority"}
			}
			return []byte(`{"id":"a1","state":"active"}`), nil
		},
		"yard.api.v1.job.replay": `{"id":"new","queue":"mail","duplicate":true,"replay_of":"old"}`,
		"yard.api.v1.job.wait":   `{"id":"new","state":"completed"}`,
	})
}

func TestCancel(t *testing.T) {
	f := changeFake(t)
	for _, tt := range []struct {
		line string
		want ran
	}{
		{"job cancel a1", ran{out: "a1  active, told to stop\n"}},
		{"job cancel --queue mail --function send", ran{
			out: "JOB   STATE   RESULT\nw1    active  cancelled\na1    active  cancelled\ngone  active  ended\n",
			err: "yardmaster: 2 cancelled, 1 ended\n",
		}},
		{"job cancel --queue mail --state delayed", ran{out: "no such jobs\n"}},
		{"job cancel --queue mail --state waiting --dry-run", ran{
			out: "JOB  STATE    RESULT\nw1   waiting  would be cancelled\nw2   waiting  would be cancelled\n",
			err: "yardmaster: 2 would be cancelled\n",
		}},
	} {
		if diff := cmp.Diff(tt.want, f.run(t, strings.Fields(tt.line)...), cmp.AllowUnexported(ran{})); diff != "" {
			t.Errorf("%s: %s", tt.line, diff)
		}
	}
	sameJSON(t, f.run(t, "job", "cancel", "--queue", "mail", "--function", "other", "--json").out,
		`{"jobs":[{"id":"w2","state":"active","result":"cancelled"}]}`)
	if got := f.run(t, "job", "cancel", "away"); got.code != 1 {
		t.Errorf("%+v", got)
	}
	for _, line := range []string{
		"job cancel", "job cancel --queue mail", "job cancel --all", "job cancel --state waiting", "job cancel a1 --all", "job cancel a1 --dry-run",
		"job cancel --queue mail --state failed", "job cancel --queue mail --all --state waiting",
	} {
		if got := f.run(t, strings.Fields(line)...); got.code != 2 {
			t.Errorf("%s: %+v", line, got)
		}
	}
}

func TestReplay(t *testing.T) {
	f := changeFake(t)
	const had = "yardmaster: the yard had this job already\n"
	for _, tt := range []struct {
		line, asked string
		want        ran
	}{
		{"job replay old -q mail --to slow --id k --params {\"a\":1}", `replay {"id":"old","new_id":"k","params":{"a":1},"queue":"mail","to":"slow"}`, ran{out: "new\n", err: had}},
		{"job replay old --wait", `replay {"id":"old"}`, ran{out: "job    new\nstate  completed\n", err: had + "yardmaster: accepted as new\n"}},
	} {
		f.questions()
		got := f.run(t, strings.Fields(tt.line)...)
		got.out = strings.Join(strings.SplitAfter(got.out, "\n")[:strings.Count(tt.want.out, "\n")], "")
		if asked := f.questions(); len(asked) == 0 || asked[0] != tt.asked {
			t.Errorf("%s: asked %q", tt.line, asked)
		}
		if tt.want.out == "new\n" && got != tt.want || got.err != tt.want.err || got.code != 0 {
			t.Errorf("%s: %+v", tt.line, got)
		}
	}
	for _, line := range []string{
		"job replay", "job replay a b --id k", "job replay a b --wait", "job replay a --for 1s", "job replay a --to no.good",
		"job replay a --params 7", "job replay a --id " + strings.Repeat("k", 129),
	} {
		if got := f.run(t, strings.Fields(line)...); got.code != 2 {
			t.Errorf("%s: %+v", line, got)
		}
	}
}

// A job that was missed because others left the list before it is found when
// they are looked for again; one that changed its list is cancelled once.
func TestCancel_Moving(t *testing.T) {
	var lists, cancels atomic.Int64
	f := startFake(t, answers{
		"yard.api.v1.job.list": func(question []byte) ([]byte, error) {
			switch look := lists.Add(1); {
			case look == 2 && strings.Contains(string(question), `"delayed"`), look == 3 && strings.Contains(string(question), `"active"`):
				return []byte(`{"jobs":[{"id":"moving","state":"active","function":"send"}]}`), nil
			case look == 4:
				return []byte(`{"jobs":[{"id":"missed","state":"waiting","function":"send"}]}`), nil
			}
			return []byte(`{"jobs":[]}`), nil
		},
		"yard.api.v1.job.cancel": func([]byte) ([]byte, error) {
			cancels.Add(1)
			return []byte(`{"id":"x","state":"failed"}`), nil
		},
	})
	got := f.run(t, "job", "cancel", "--queue", "mail", "--all")
	if want := "yardmaster: 2 cancelled\n"; got.err != want || cancels.Load() != 2 || !strings.Contains(got.out, "missed") {
		t.Errorf("%d questions, %+v", cancels.Load(), got)
	}
}
