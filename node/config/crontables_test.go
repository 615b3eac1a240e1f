package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// loadCrons reads the cron entries of a configuration.
func loadCrons(t *testing.T, text string) ([]ledger.Cron, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil {
		return nil, err
	}
	return c.Crons()
}

func TestCronJobs(t *testing.T) {
	crons, err := loadCrons(t, `
[[rrq.cron_jobs]]
function_name = "process_message"
schedule = "0 * * * * *"
params = { payload = "cron payload", n = 9007199254740993, at = 2026-01-02T03:04:05Z }
queue_name = "rrq:queue:mail"
unique = true

[[rrq.cron_jobs]]
function_name = "py#app.tasks:clean"
schedule = "0 0 9 * january-September 2-6 *"

[[rrq.cron_jobs]]
function_name = "py#app.tasks:clean"
schedule = "0 0 9 ? * 1,Wed/2,Thurs-7"
name = "sundays"
time_zone = "Europe/Berlin"
missed = "once"

[[rrq.cron_jobs]]
function_name = "py#app.tasks:clean"
schedule = "@hourly"
`)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []ledger.Cron{
		{Name: "process_message", Schedule: "0 * * * * *", Queue: "mail", NoOverlap: true, Body: []byte(`{"function":"process_message","params":{"at":"2026-01-02T03:04:05Z","n":9007199254740993,"payload":"cron payload"}}`)},
		{Name: "py-app-tasks-clean", Schedule: "0 0 9 * JAN-SEP MON-FRI", Queue: "default", Body: []byte(`{"function":"py#app.tasks:clean"}`)},
		{Name: "sundays", Schedule: "0 0 9 ? * SUN,Wed/2,THU-SAT", TimeZone: "Europe/Berlin", Queue: "default", CatchUp: true, Body: []byte(`{"function":"py#app.tasks:clean"}`)},
		{Name: "py-app-tasks-clean-2", Schedule: "@hourly", Queue: "default", Body: []byte(`{"function":"py#app.tasks:clean"}`)},
	} {
		want.Declared = true
		if !crons[i].Equal(&want) {
			t.Errorf("table %d gives\n%+v %s, want\n%+v %s", i+1, crons[i], crons[i].Body, want, want.Body)
		}
	}
}

func TestCronJobs_Invalid(t *testing.T) {
	const good = "[[rrq.cron_jobs]]\nfunction_name = \"a\"\nschedule = \"@daily\"\n"
	for text, says := range map[string]string{
		"[[rrq.cron_jobs]]\nschedule = \"@daily\"\n":                                   "function_name",
		"[[rrq.cron_jobs]]\nfunction_name = \"a\"\n":                                   "schedule",
		good + "[[rrq.cron_jobs]]\nfunction_name = \"b\"\nschedule = \"61 * * * * *\"": "table 2: schedule \"61 * * * * *\": second",
		"[[rrq.cron_jobs]]\nfunction_name = \"a\"\nschedule = \"0 0 0 * * 0\"\n":       "1 (Sunday)",
		"[[rrq.cron_jobs]]\nfunction_name = \"a\"\nschedule = \"0 0 0 1 * 2\"\n":       "both given",
		"[[rrq.cron_jobs]]\nfunction_name = \"a\"\nschedule = \"0 0 0 1 1 * 2027\"":    "year is",
		"[[rrq.cron_jobs]]\nfunction_name = \"a\"\nschedule = \"0 0 0 L * ?\"":         "day of month is",
		"[[rrq.cron_jobs]]\nfunction_name = \"a\"\nschedule = \"0 0 0 * * Sonntag\"":   "day of week is",
		"[[rrq.cron_jobs]]\nfunction_name = \"a\"\nschedule = \"@every 1.7s\"\n":       "whole seconds",
		good + "time_zone = \"Mars\"\n":                                                "time_zone",
		good + "missed = \"all\"\n":                                                    "missed",
		good + "queue_name = \"no good\"\n":                                            "queue",
		good + "name = \"no good\"\n":                                                  "name",
		good + "cron = 1\n":                                                            "rrq.cron_jobs.cron",
		good + "params = { x = nan }\n":                                                "params",
		good + "name = \"x\"\n" + good + "name = \"x\"\n":                              "two tables",
		good + "params = { x = \"" + strings.Repeat("x", 5000) + "\" }\n":              "at most 4096",
	} {
		if _, err := loadCrons(t, text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.120s\n%v does not contain %q", text, err, says)
		}
	}
}
