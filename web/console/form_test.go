package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
)

// queuePage returns a console whose yard has the queue mail, the cookie of an operator, and
// the fields of the form of the settings as the page has them.
func queuePage(t *testing.T) (post func(act string, form url.Values) (*http.Response, string), yard *testYard, form url.Values) {
	s, yard := startConsole(t, nil)
	q := api.Queue{Name: "mail", State: "running", MaxAttempts: 5, Timeout: 30_000, Fair: true, Weights: map[string]uint32{"acme": 3, "a=b": 2, "\u202e": 9}, AllowOverrides: true,
		Priority: new(uint8(0)), Age: 600_000, KeyOptional: true, Limits: []string{"smtp", "dns"}, Index: []string{"params.a", "params.b"}, Retention: []api.RetentionSetting{
			{Name: "finished.age", Value: 0, Unit: "ms"}, {Name: "failed.count", Value: 0, Unit: "items"}, {Name: "results.age", Value: 90_061_000, Unit: "ms"}},
		Retry: []api.RetryRule{{Function: "send", BackoffMS: 1000}}}
	yard.setQueue(q)
	yard.replies["queue-set"], yard.replies["limit-set"], yard.replies["limit-show"] = q, api.Limit{}, api.LimitDetail{Limit: api.Limit{Rate: "5/s"}}
	cookie := signIn(t, s, url.Values{"token": {"ann-token"}})
	r, text := request(t, s, "GET", Path+"queues/mail", nil, cookie)
	if r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", r.Status, text)
	}
	form = url.Values{"form": {regexp.MustCompile(`name="form" value="([^"]+)"`).FindStringSubmatch(text)[1]}, "back": {Path + "queues/mail"}, "name": {"mail"}}
	for _, field := range regexp.MustCompile(`name="was-([a-z_.]+)" value="([^"]*)"`).FindAllStringSubmatch(text[:strings.Index(text, ">Save<")], -1) {
		form["was-"+field[1]], form[field[1]] = []string{field[2]}, []string{field[2]}
	}
	return func(act string, form url.Values) (*http.Response, string) {
		return request(t, s, "POST", Path+"act/"+act, form, cookie)
	}, yard, form
}

// setQueue makes q the only queue of the yard.
func (y *testYard) setQueue(q api.Queue) {
	y.replies["queue-explain"], y.replies["queue-show"] = api.QueueExplanation{Queue: q}, q
}

// Only settings that were edited are changed; an empty field resets its setting.
func TestQueueSettings(t *testing.T) {
	post, yard, form := queuePage(t)
	if r, _ := post("queue-set", form); r.StatusCode != http.StatusSeeOther || len(yard.calls) > 0 {
		t.Fatalf("%s, and %d calls, though nothing was edited", r.Status, len(yard.calls))
	}
	for name, value := range map[string]string{
		"max_attempts": "", "timeout_ms": "2m", "fair": "", "allow_job_overrides": "", "weights": "acme=4\r\nnew one=7\r\n\\u{202e}=8\r\n", "index": "params.customer, params.order.id",
		"retention.finished.age_ms": "48h", "retention.finished.count": "10", "retention.failed.count": "", "retention.results.age_ms": "1d", "key": "params.customer",
		"age_ms": "", "priority": "1", "key_optional": "", "limits": "smtp",
	} {
		form[name] = []string{value}
	}
	if r, _ := post("queue-set", form); r.StatusCode != http.StatusSeeOther {
		t.Fatal(r.Status)
	}
	checkRequest(t, yard, `{"name":"mail","max_attempts":null,"timeout_ms":120000,"fair":null,"allow_job_overrides":false,"weights":{"acme":4,"a=b":null,"new one":7,"\u202e":8},
		"index":["params.customer","params.order.id"],"retention":{"finished":{"age_ms":172800000,"count":10},"failed":{"count":null},"results":{"age_ms":86400000}},"key":"params.customer",
		"age_ms":null,"priority":1,"key_optional":null,"limits":["smtp"]}`)

	rule := url.Values{"form": form["form"], "back": form["back"], "name": {"mail"}, "part": {"rule send"}, "function": {"send"},
		"was-backoff_ms": {"1s"}, "backoff_ms": {""}, "was-jitter": {""}, "jitter": {"10"}, "was-retry_on": {""}, "retry_on": {"http_503,timeout"}}
	post("retry-set", rule)
	checkRequest(t, yard, `{"name":"mail","retry":[{"function":"send","backoff_ms":null,"jitter":10,"retry_on":["http_503","timeout"]}]}`)
	rule["remove"] = []string{"1"}
	post("retry-set", rule)
	checkRequest(t, yard, `{"name":"mail","retry":[{"function":"send","remove":true}]}`)
}

// checkRequest checks the request of the next act.
func checkRequest(t *testing.T, yard *testYard, want string) {
	t.Helper()
	var got, wanted any
	if err := json.Unmarshal((<-yard.calls).Data, &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(want), &wanted); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, wanted) {
		t.Errorf("the request is %v, want %v", got, wanted)
	}
}

// A setting that is refused, by the page or by the yard, is named at its field, and what was
// entered stays.
func TestQueueSettings_Refused(t *testing.T) {
	post, yard, form := queuePage(t)
	form["timeout_ms"], form["max_attempts"], form["weights"] = []string{"soon"}, []string{"7"}, []string{"<b>=1"}
	check := func(field, value, reason string) {
		t.Helper()
		r, text := post("queue-set", form)
		at := regexp.MustCompile(`<(?:input|textarea) name="([^"]*)"[^>]*aria-invalid="true" aria-describedby="([^"]*)"`).FindAllStringSubmatch(text, -1)
		if r.StatusCode != http.StatusBadRequest || len(at) != 1 || at[0][1] != field || !strings.Contains(text, `id="`+at[0][2]+`">`+reason) {
			t.Errorf("%s, refused at %q, want at %s: %s", r.Status, at, field, reason)
		}
		if !strings.Contains(text, `name="`+field+`" value="`+value+`"`) && !strings.Contains(text, ">"+value+"</textarea>") || !strings.Contains(text, `name="max_attempts" value="7"`) || !strings.Contains(text, "data-dirty") {
			t.Errorf("what was entered into %s is lost", field)
		}
	}
	check("timeout_ms", "soon", "&#34;soon&#34; must be a duration")
	form["timeout_ms"], form["weights"] = []string{"30s"}, []string{"<b>"}
	check("weights", "&lt;b&gt;", "&#34;&lt;b&gt;&#34; has no weight")
	form["weights"] = []string{"acme=1001"}
	yard.replies["queue-set"] = &api.Error{Code: api.CodeInvalid, Text: `the weight of key "acme" is 1001; must be 1 to 1000, or null`}
	check("weights", "acme=1001", "the weight of key")
	yard.replies["queue-set"] = &api.Error{Code: api.CodeInvalid, Text: "max_attempts is 7; must be …"}
	check("max_attempts", "7", "max_attempts is 7")
	yard.replies["queue-set"] = &api.Error{Code: api.CodeUnavailable, Text: "no quorum"}
	if r, text := post("queue-set", form); r.StatusCode != http.StatusServiceUnavailable || strings.Contains(text, "aria-invalid") || !strings.Contains(text, "Not done: no quorum") {
		t.Errorf("without a quorum: %s", r.Status)
	}
}

// A setting that someone has changed since the page was shown is not replaced before the user
// has seen its present value. Others that were changed stay.
func TestQueueSettings_Stale(t *testing.T) {
	post, yard, form := queuePage(t)
	check := func(act string, form url.Values, text string, shown ...string) {
		t.Helper()
		r, page := post(act, form)
		if r.StatusCode != http.StatusConflict || !strings.Contains(page, "Not done: since this page was shown, "+text+"; save again to replace that") || len(yard.calls) > 0 {
			t.Errorf("%s, %d acts; want the page to say: %s", r.Status, len(yard.calls), text)
		}
		for _, want := range shown {
			if !strings.Contains(page, want) {
				t.Errorf("the page does not have %s", want)
			}
		}
	}
	q := yard.replies["queue-show"].(api.Queue)
	q.Limit, q.Timeout, q.Fair, q.Weights, q.Retry = new(uint32(5)), 60_000, false, map[string]uint32{"acme": 3, "a=b": 7, "\u202e": 9}, []api.RetryRule{{Function: "send", BackoffMS: 2000}}
	yard.setQueue(q)
	form["concurrency_limit"], form["fair"] = []string{"9"}, []string{""}
	check("queue-set", form, "concurrency limit was changed to 5", `name="concurrency_limit" value="9"`, `name="was-concurrency_limit" value="5"`,
		`aria-invalid="true"`, `name="timeout_ms" value="1m"`, `name="was-timeout_ms" value="1m"`)
	form["was-concurrency_limit"] = []string{"5"}
	form["weights"] = []string{"acme=3\r\n\\u{202e}=9"}
	check("queue-set", form, "the weight of a=b was changed to 7")
	form["weights"] = []string{"acme=4\r\na=b=2\r\n\\u{202e}=9"}
	if r, _ := post("queue-set", form); r.StatusCode != http.StatusSeeOther {
		t.Fatal(r.Status)
	}
	checkRequest(t, yard, `{"name":"mail","concurrency_limit":9,"fair":null,"weights":{"acme":4}}`)

	check("retry-set", url.Values{"form": form["form"], "back": form["back"], "name": {"mail"}, "part": {"rule send"}, "function": {"send"},
		"was-backoff_ms": {"1s"}, "backoff_ms": {"3s"}}, "backoff was changed to 2s", `name="backoff_ms" value="3s"`, `name="was-backoff_ms" value="2s"`)
	limit := url.Values{"form": form["form"], "back": {Path + "limits/smtp"}, "name": {"smtp"}, "was-rate": {"1/s"}, "rate": {"2/s"}, "was-total": {"7"}, "total": {""}}
	check("limit-set", limit, "rate was changed to 5/s", `name="rate" value="2/s"`, `name="was-rate" value="5/s"`)
	limit["was-rate"], limit["was-total"], limit["total"] = []string{"5/s"}, []string{"7"}, []string{"8"}
	check("limit-set", limit, "total was reset")
}

// TestJobActs checks that a job has only buttons for what would not be refused.
func TestJobActs(t *testing.T) {
	s, yard := startConsole(t, nil)
	cookie := signIn(t, s, url.Values{"token": {"ann-token"}})
	for _, c := range []struct {
		job  api.Job
		want string
	}{
		{api.Job{State: "completed"}, "job-replay job-remove"},
		{api.Job{State: "failed", DeadLetter: 7}, "job-retry job-replay job-remove"},
		{api.Job{State: "cancelled"}, "job-retry job-replay job-remove"},
		{api.Job{State: "waiting"}, "job-set job-cancel job-remove"},
		{api.Job{State: "active"}, "job-cancel"},
		{api.Job{State: "completed", Forgotten: true}, "job-replay"},
		{api.Job{State: "failed", Forgotten: true, DeadLetter: 7}, "dlq-requeue job-replay"},
		{api.Job{State: "failed", Forgotten: true, DeadLetter: 7, LetterGone: true}, "job-replay"},
	} {
		c.job.Queue = "mail"
		yard.replies["job-explain"], yard.replies["job-show"] = api.JobExplanation{State: c.job.State}, c.job
		_, text := request(t, s, "GET", Path+"jobs/x", nil, cookie)
		var got []string
		for _, act := range regexp.MustCompile(`action="/console/act/((?:job|dlq)-[a-z]+)"`).FindAllStringSubmatch(text, -1) {
			got = append(got, act[1])
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: buttons %q, want %q", c.job, got, c.want)
		}
	}
}
