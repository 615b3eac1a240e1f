package catalogue

import (
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/test/drill"
)

// checkBounds requires that the streams get the bounds of the settings in force, and keep
// them.
func checkBounds(s *drill.Harness, w *streamWatch) {
	var wrong error
	kept := s.Within(time.Minute, func() bool {
		var yard api.Retention
		s.Ask("retention.show", struct{}{}, &yard)
		status, err := s.AwaitAuthority().Status(s.Ctx)
		wrong = errors.Join(err, boundErrors(&yard, &status))
		return wrong == nil
	})
	s.Require(kept, "streams do not keep their bounds: %v", wrong)
	for _, name := range []string{subjects.StreamRelocated, subjects.StreamDLQ, subjects.StreamResults, subjects.StreamResultBlobs, subjects.LaneStream(0)} {
		s.Figure(name+": first message kept", w.state(false, name))
	}
}

// boundErrors returns how the streams differ from the settings, and which exceed their
// bounds.
func boundErrors(yard *api.Retention, status *api.Status) (err error) {
	value := make(map[string]int64)
	for _, setting := range yard.Settings {
		value[setting.Name] = setting.Value
	}
	type limits struct{ count, bytes, age int64 }
	results := limits{bytes: value["results.bytes"] / 2, age: value["results.age"]}
	want := map[string]limits{
		subjects.StreamDLQ:     {value["failed.count"], value["failed.bytes"], value["failed.age"]},
		subjects.StreamResults: results, subjects.StreamResultBlobs: results,
		subjects.StreamEvents: {bytes: value["events.bytes"], age: value["events.age"]},
		subjects.StreamLogs:   {value["logs.count"], value["logs.bytes"], value["logs.age"]},
	}
	found := 0
	for _, u := range status.Streams {
		if u.LimitBytes > 0 && u.Bytes > u.LimitBytes || u.LimitMessages > 0 && u.Messages > u.LimitMessages {
			err = errors.Join(err, fmt.Errorf("%s has %d bytes of %d and %d messages of %d", u.Stream, u.Bytes, u.LimitBytes, u.Messages, u.LimitMessages))
		}
		limit, retained := want[u.Stream]
		if !retained {
			continue
		}
		found++
		if got := (limits{int64(u.LimitMessages), int64(u.LimitBytes), u.MaxAgeMS}); got != limit {
			err = errors.Join(err, fmt.Errorf("%s has the bounds %+v, want %+v", u.Stream, got, limit))
		}
	}
	if found < len(want) {
		err = errors.Join(err, fmt.Errorf("%d of %d streams are reported", found, len(want)))
	}
	return err
}

// retryDeadLetters requires that every dead letter that is kept can be shown with the params
// of its job, and retries all.
func retryDeadLetters(s *drill.Harness) {
	letters := deadLetters(s)
	broken := make(map[uint64]error)
	for _, letter := range letters {
		if err := showDeadLetter(s, letter); err != nil {
			broken[letter.Number] = err
		}
	}
	for _, letter := range deadLetters(s) { // those evicted meanwhile do not count
		err := broken[letter.Number]
		s.Require(err == nil, "dead letter %d of job %s is kept and cannot be shown: %v", letter.Number, letter.ID, err)
	}
	results := make(map[string]int)
	request := api.DeadLetterRequest{All: true, Limit: 200}
	for {
		var reply api.DeadLetterResults
		s.Ask("dlq.requeue", &request, &reply)
		for _, item := range reply.Items {
			results[item.Result]++
			s.Require(item.Error == "", "dead letter %d of job %s cannot be retried: %s", item.Number, item.ID, item.Error)
		}
		s.Require(reply.Stopped == "", "retry of dead letters stopped: %s", reply.Stopped)
		if request.From, request.Until = reply.Next, reply.Until; reply.Next == 0 {
			break
		}
	}
	s.Figure("dead letters at the end, and what retries of them did", fmt.Sprintf("%d, %v", len(letters), results))
	s.Require(results[api.ResultRetried] > 0, "no dead letter was retried: %v", results)
}

// deadLetters returns all dead letters.
func deadLetters(s *drill.Harness) (all []api.DeadLetter) {
	request := api.DeadLetterRequest{Limit: 1000}
	for {
		var page api.DeadLetterPage
		s.Ask("dlq.list", &request, &page)
		all = append(all, page.Letters...)
		if request.From, request.Until = page.Next, page.Until; page.Next == 0 {
			return all
		}
	}
}

// showDeadLetter shows a dead letter and its job.
func showDeadLetter(s *drill.Harness, letter api.DeadLetter) error {
	var shown struct{ Job any }
	if err := askAgain(s, "dlq-show", &api.DeadLetterRequest{Letters: []uint64{letter.Number}}, &shown); err != nil {
		return err
	}
	var of api.Job
	if err := askAgain(s, "job-show", map[string]any{"id": letter.ID}, &of); err != nil {
		return err
	}
	var params api.Content
	err := askAgain(s, "job-params", map[string]any{"id": letter.ID}, &params)
	if err == nil && int64(len(params.Data)) != params.Size {
		err = fmt.Errorf("%d of %d bytes of its params are there", len(params.Data), params.Size)
	}
	if of.State != "failed" || of.LetterGone || shown.Job == nil {
		err = errors.Join(err, fmt.Errorf("its job is %s, letter gone: %t, record in the letter: %t", of.State, of.LetterGone, shown.Job != nil))
	}
	return err
}

// askAgain sends an API request to a running node, and repeats it for up to half a minute
// while the answer is that it can be repeated, as after an election.
func askAgain(s *drill.Harness, endpoint string, request, answer any) (err error) {
	n := s.Running()[0]
	s.Within(30*time.Second, func() bool {
		err = n.Ask(s.Ctx, api.Subject(endpoint), request, answer)
		var refused *api.Error
		return !errors.As(err, &refused) || refused.Code != api.CodeUnavailable
	})
	return err
}
