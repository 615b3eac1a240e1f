package console

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// nightly returns a cron entry with a tick in a skipped hour.
func nightly() api.CronDetail {
	at := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)
	return api.CronDetail{Cron: api.Cron{
		Name: "nightly", Schedule: "0 30 2 * * *", Zone: "Europe/Berlin", Queue: "reports", State: "running", Missed: api.CronSkip, Overlap: api.CronSkip,
		Job:  []byte(`{"function":"build","params":{"n":12345678901234567890},"max_attempts":3}`),
		Next: &at, Upcoming: []time.Time{at}, Ticks: []api.CronTick{{At: at, Local: "2026-03-29T03:00:00+02:00", Note: "skipped hour: runs at 03:00"}},
	}}
}

// cronPage returns a page of the console of a yard that has the entry nightly, a function that posts
// its forms, the yard, and the fields of the page's form with their values.
func cronPage(t *testing.T, path string) (text string, post func(act string, form url.Values) (*http.Response, string), yard *testYard, form url.Values) {
	t.Helper()
	s, yard := startConsole(t, nil)
	entry := nightly()
	yard.replies["cron-list"], yard.replies["cron-show"], yard.replies["cron-add"] = api.CronPage{Entries: []api.Cron{entry.Cron}}, entry, entry.Cron
	yard.replies["cron-remove"] = api.Removed{Name: "nightly", Removed: true}
	cookie := signIn(t, s, url.Values{"token": {"ann-token"}})
	r, text := request(t, s, "GET", Path+path, nil, cookie)
	if r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", r.Status, text)
	}
	form = url.Values{"back": {Path + path}, "name": {"nightly"}}
	if token := regexp.MustCompile(`name="form" value="([^"]+)"`).FindStringSubmatch(text); token != nil {
		form.Set("form", token[1])
	}
	for _, field := range regexp.MustCompile(`name="was-([a-z_.]+)" value="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		value := strings.NewReplacer("&#34;", `"`, "\n", "\r\n").Replace(field[2])
		form["was-"+field[1]], form[field[1]] = []string{value}, []string{value}
	}
	return text, func(act string, form url.Values) (*http.Response, string) {
		return request(t, s, "POST", Path+"act/"+act, form, cookie)
	}, yard, form
}

// The pages show the next ticks with their notes and the zone.
func TestCron_Ticks(t *testing.T) {
	for _, path := range []string{"cron", "cron/nightly"} {
		text, _, _, _ := cronPage(t, path)
		for _, want := range []string{"skipped hour: runs at 03:00", "Europe/Berlin"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not have %q", path, want)
			}
		}
	}
	if text, _, _, _ := cronPage(t, "cron/nightly"); !strings.Contains(text, `Sun 2026-03-29 03:00:00 <span class="zone dim">UTC+02:00</span>`) {
		t.Error("the page of the entry does not have the time in its zone")
	}
}

// An entry is added, changed in the fields that were edited, and removed.
func TestCron_Acts(t *testing.T) {
	_, post, yard, form := cronPage(t, "cron")
	form.Set("new", "1")
	form.Set("part", "new")
	form.Set("name", "nightly")
	for name, value := range map[string]string{"schedule": "@daily", "queue": "reports", "function": "build", "params": "{\r\n\"n\": 12345678901234567890}", "run_missed": "on"} {
		form.Set(name, value)
	}
	r, _ := post("cron-add", form)
	if r.StatusCode != http.StatusSeeOther || r.Header.Get("Location") != Path+"cron/nightly" {
		t.Fatalf("%s to %s", r.Status, r.Header.Get("Location"))
	}
	checkRequest(t, yard, `{"name":"nightly","schedule":"@daily","time_zone":"","queue":"reports","missed":"once","overlap":"allow","replace":false,
		"job":{"function":"build","params":{"n":12345678901234567890}}}`)

	_, post, yard, form = cronPage(t, "cron/nightly")
	if r, _ := post("cron-add", form); r.StatusCode != http.StatusSeeOther || len(yard.calls) > 0 {
		t.Fatalf("%s, and %d calls, though nothing was edited", r.Status, len(yard.calls))
	}
	form.Set("schedule", "0 0 4 * * *")
	form.Set("skip_overlap", "")
	if r, _ := post("cron-add", form); r.StatusCode != http.StatusSeeOther {
		t.Fatal(r.Status)
	}
	checkRequest(t, yard, `{"name":"nightly","schedule":"0 0 4 * * *","time_zone":"Europe/Berlin","queue":"reports","missed":"skip","overlap":"allow","replace":true,
		"job":{"function":"build","params":{"n":12345678901234567890},"max_attempts":3}}`)

	r, _ = post("cron-remove", url.Values{"form": form["form"], "back": form["back"], "name": {"nightly"}, "reason": {"done"}})
	if r.StatusCode != http.StatusSeeOther || r.Header.Get("Location") != Path+"cron" {
		t.Fatalf("%s to %s", r.Status, r.Header.Get("Location"))
	}
	checkRequest(t, yard, `{"name":"nightly"}`)
}

// A refusal is shown at its field, with the text that the user entered.
func TestCron_Refused(t *testing.T) {
	check := func(act func(url.Values) (*http.Response, string), form url.Values, status int, field, value, says string) {
		t.Helper()
		r, page := act(form)
		at := regexp.MustCompile(`name="` + field + `"[^>]*aria-invalid="true"|name="` + field + `"[^>]*aria-describedby`)
		if r.StatusCode != status || !strings.Contains(page, says) || !strings.Contains(page, value) || !at.MatchString(page) {
			t.Errorf("%s; want %d, %q at %s, and %q in it", r.Status, status, says, field, value)
		}
	}
	for _, tt := range []struct {
		field, value, says string
		status             int
		err                *api.Error
	}{
		{"schedule", "*/90 * * * *", "a step starts again", 400, &api.Error{Code: api.CodeInvalid, Text: `schedule "*/90 * * * *": minute is "*/90": a step starts again with each hour`}},
		{"time_zone", "Mars", "is not known", 400, &api.Error{Code: api.CodeInvalid, Text: `time_zone "Mars" is not known`}},
		{"params", "[1]", "must be a JSON object", 400, nil},
		{"options", "{", "must be a JSON object", 400, nil},
	} {
		_, post, yard, form := cronPage(t, "cron/nightly")
		if tt.err != nil {
			yard.replies["cron-add"] = tt.err
		}
		form.Set(tt.field, tt.value)
		check(func(f url.Values) (*http.Response, string) { return post("cron-add", f) }, form, tt.status, tt.field, strings.ReplaceAll(tt.value, `"`, "&#34;"), tt.says)
	}
	_, post, yard, form := cronPage(t, "cron")
	yard.replies["cron-add"] = &api.Error{Code: api.CodeConflict, Text: "a different cron entry of this name exists"}
	form.Set("new", "1")
	form.Set("part", "new")
	form.Set("schedule", "@daily")
	check(func(f url.Values) (*http.Response, string) { return post("cron-add", f) }, form, 409, "name", "nightly", "a different cron entry")

	_, post, yard, form = cronPage(t, "cron/nightly")
	changed := nightly()
	changed.Schedule = "@hourly"
	yard.replies["cron-show"] = changed
	form.Set("schedule", "@daily")
	check(func(f url.Values) (*http.Response, string) { return post("cron-add", f) }, form, 409, "schedule", "@daily", "schedule was changed to @hourly")
	form.Del("form")
	if _, page := post("cron-remove", form); len(yard.calls) > 0 {
		t.Errorf("an entry was removed without the page's token: %s", page)
	}
}

// A user who may not change entries gets no form for it, and no user gets one for a declared entry.
func TestCron_NoForms(t *testing.T) {
	s, yard := startConsole(t, func(cfg *Config) {
		cfg.Users[1].May = func(subject string) bool {
			return subject != api.Subject("cron-add") && subject != api.Subject("cron-remove")
		}
	})
	entry := nightly()
	yard.replies["cron-list"], yard.replies["cron-show"] = api.CronPage{Entries: []api.Cron{entry.Cron}}, entry
	bob := signIn(t, s, url.Values{"user": {"bob"}, "password": {"letmein"}})
	ann := signIn(t, s, url.Values{"token": {"ann-token"}})
	page := func(path string, cookie *http.Cookie) string {
		_, text := request(t, s, "GET", Path+path, nil, cookie)
		return text
	}
	if text := page("cron", bob); strings.Contains(text, "Add an entry") {
		t.Error("the list has a form for those who may not add entries")
	}
	if text := page("cron/nightly", bob); strings.Contains(text, ">Save<") || strings.Contains(text, "act/cron-remove") || !strings.Contains(text, "<fieldset disabled>") {
		t.Error("the page has forms for those who may not change entries")
	}
	if text := page("cron/nightly", ann); !strings.Contains(text, ">Save<") || !strings.Contains(text, "act/cron-remove") {
		t.Error("the page has no forms for operators")
	}
	entry.Declared = true
	yard.replies["cron-show"] = entry
	if text := page("cron/nightly", ann); strings.Contains(text, ">Save<") || strings.Contains(text, "act/cron-remove") {
		t.Error("the page has forms for a declared entry")
	}
}
