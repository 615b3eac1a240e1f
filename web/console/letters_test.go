package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Dead letters are filtered by when they failed, and what is done to all of the filter is done to those alone.
func TestLetters_Times(t *testing.T) {
	s, yard := startConsole(t, nil)
	yard.replies["dlq-list"] = api.DeadLetterPage{Letters: []api.DeadLetter{{Number: 7, DeadLetterMessage: api.DeadLetterMessage{ID: job.ID{7}.String()}}}}
	yard.replies["dlq-stats"], yard.replies["dlq-requeue"] = api.DeadLetterStats{}, api.DeadLetterResults{}
	cookie := signIn(t, s, url.Values{"token": {"ann-token"}})
	r, text := request(t, s, "GET", Path+"dead-letters?from=2026-11-01&to=2026-11-01T14:05&queue=mail", nil, cookie)
	if r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", r.Status, text)
	}
	form := url.Values{"all": {"1"}, "form": {formOf(t, text)}, "back": {Path + "dead-letters"}}
	for _, field := range regexp.MustCompile(`type="hidden" name="(queue|failed_after|failed_before)" value="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		form.Set(field[1], field[2])
	}
	if r, text := request(t, s, "POST", Path+"act/dlq-requeue", form, cookie); r.StatusCode != http.StatusSeeOther {
		t.Fatalf("%s: %s", r.Status, text)
	}
	var sent api.DeadLetterRequest
	if err := json.Unmarshal((<-yard.calls).Data, &sent); err != nil {
		t.Fatal(err)
	}
	day := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	if sent.All || sent.Queue != "mail" || sent.FailedAfter == nil || !sent.FailedAfter.Equal(day.Add(-1)) || sent.FailedBefore == nil || !sent.FailedBefore.Equal(day.Add(14*time.Hour+6*time.Minute)) {
		t.Errorf("the request is %+v", sent)
	}
	if want := "ended%3A%3E%3D2026-11-01&#43;ended%3A%3C%3D2026-11-01T14%3A05&#43;queue%3Amail"; !strings.Contains(text, want) {
		t.Errorf("the operation on all of the filter does not have the query %s", want)
	}
	for query, want := range map[string]string{"from=soon": "is not a time", "to=2026-13-01": "is not a time", "letter=x": "has a number"} {
		if r, text := request(t, s, "GET", Path+"dead-letters?"+query, nil, cookie); r.StatusCode != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: %s, without %q", query, r.Status, want)
		}
	}
}

// The page of one letter offers no act on all letters.
func TestLetters_Named(t *testing.T) {
	s, yard := startConsole(t, nil)
	id := job.ID{7}.String()
	yard.replies["dlq-list"] = api.DeadLetterPage{Letters: []api.DeadLetter{{Number: 7, DeadLetterMessage: api.DeadLetterMessage{ID: id}}}}
	yard.replies["dlq-stats"] = api.DeadLetterStats{}
	cookie := signIn(t, s, url.Values{"token": {"ann-token"}})
	_, text := request(t, s, "GET", Path+"dead-letters?letter=7", nil, cookie)
	if strings.Contains(text, `name="all"`) || !strings.Contains(text, "query=id%3A"+id) {
		t.Error(text)
	}
}
