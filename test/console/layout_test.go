package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/yardmaster-dev/yardmaster/client"
)

// Names that are as long as they may be, or are written from right to left.
var (
	longName     = strings.Repeat("x", 60)
	longQueue    = "warehouse_" + strings.Repeat("q", 71)
	longFunction = strings.Repeat("f", 85)
	rightToLeft  = "إرسال_البريد_الإلكتروني_إلى_جميع_العملاء_في_الشركة"
)

// manyAttempts is how often the job with the key "often" has failed.
const manyAttempts = 40

// layoutPaths returns the pages that show what fillLong makes, among them one of what differs since an event.
func layoutPaths(from string) []string {
	of := url.QueryEscape("queue:" + longQueue)
	paths := []string{
		"", "queues", "queues/" + longName, "queues/" + longQueue, "queues/" + longQueue + "/schema?function=" + longFunction, "jobs?q=" + of, "jobs/" + longQueue + ":often", "jobs/" + longQueue + ":fails", "jobs/" + longQueue + ":" + longName, "jobs/" + longQueue + ":right-to-left",
		"dead-letters?queue=" + longQueue, "dead-letters?from=1h&to=now&letter=1", "cron", "cron/" + longName, "limits", "limits/" + longName, "workers", "members", "events", "settings", "operations", "operations/" + longOperation, "sign-in",
		"past", "past?queue=" + longQueue, "diff?from=" + from,
		"operations/new?action=requeue&query=" + of + "&to=" + longName + "&params=" + url.QueryEscape(`{"`+longName+`":"`+rightToLeft+`"}`),
	}
	for _, action := range []string{"retry", "cancel", "remove"} {
		paths = append(paths, "operations/new?action="+action+"&query="+of)
	}
	return paths
}

// longOperation is the number of an operation that fillLong starts; "" before.
var longOperation string

// fillLong makes objects with long names, and jobs that have failed with long errors, some often.
func fillLong(t *testing.T) {
	t.Helper()
	if longOperation != "" {
		return
	}
	type object = map[string]any
	trace := "Traceback (most recent call last):\n" + strings.Repeat("  File \"/usr/lib/python3.13/site-packages/"+longName+".py\", line 1234, in "+longFunction+"\n", 40)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	yard, err := client.Open(ctx, client.Options{Nodes: []string{shared.yard.Nodes[0].Edge, shared.yard.Nodes[1].Edge}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = yard.Close() }) // its worker has stopped
	worker := yard.Worker()
	worker.Handle(longQueue, longFunction, func(context.Context, *client.JobInfo) (any, error) {
		return nil, client.Coded(errors.New("cannot deliver to "+longName+"@"+longName+".example: "+strings.Repeat("the server said 554 ", 200)), "smtp_"+longName, object{"traceback": trace, rightToLeft: longName})
	})
	stopped := make(chan error, 1)
	go func() { stopped <- worker.Run(context.WithoutCancel(ctx)) }()
	t.Cleanup(func() {
		if err := worker.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		<-stopped
	})
	job := func(id string, more object) {
		body := object{"id": id, "function": longFunction, "tags": []string{longName, "nightly"}, "meta": object{longName: rightToLeft}, "params": object{longName: longName, "to": rightToLeft}}
		for name, value := range more {
			body[name] = value
		}
		if _, err := send("POST", "/v1/queues/"+longQueue+"/jobs", body); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []struct {
		method, path string
		body         object
	}{
		{"PATCH", "/v1/limits/" + longName, object{"total": 1}},
		{"PUT", "/v1/queues/" + longName, object{"limits": []string{longName}}},
		{"PUT", "/v1/queues/" + longQueue, object{}},
		{"PATCH", "/v1/queues/" + longQueue, object{"limits": []string{longName}, "timeout_ms": 300_000, "retry": []object{{"function": longFunction, "backoff_ms": 1, "max_backoff_ms": 1}}}},
		{"PUT", "/v1/cron/" + longName, object{"schedule": "0 0 3 * * *", "time_zone": "America/Argentina/ComodRivadavia", "queue": longQueue, "job": object{"function": longFunction}}},
		{"PUT", "/v1/schemas/" + longQueue, object{"function": longFunction, "schema": object{"type": "object"}}},
		{"POST", "/v1/queues/" + longName + "/jobs", object{"id": longName, "function": longFunction, "limit_key": longName}},
	} {
		if _, err := send(r.method, r.path, r.body); err != nil {
			t.Fatal(err)
		}
	}
	job("often", object{"max_attempts": manyAttempts})
	job("fails", object{"max_attempts": 1, "limit_key": rightToLeft})
	job(longName, object{"function": "no worker has it", "limit_key": longName})
	job("right-to-left", object{"function": rightToLeft, "run_at": time.Now().Add(time.Hour).UTC()})
	for _, id := range []string{"often", "fails"} {
		if _, err := send("GET", "/v1/jobs/"+longQueue+":"+id+"/wait?timeout=60s", nil); err != nil {
			t.Fatal(err)
		}
	}
	op, err := send("POST", "/v1/operations", object{"action": "requeue", "query": "queue:" + longQueue + " function:" + rightToLeft, "to": longName, "params": object{longName: rightToLeft}})
	if err != nil {
		t.Fatal(err)
	}
	longOperation = fmt.Sprint(op["id"])
}

// firstState returns the number of the last event, once the yard has stored a state, which takes half a minute.
func firstState(t *testing.T) string {
	t.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		state, err := send("GET", "/v1/state", nil)
		if err == nil {
			return fmt.Sprintf("%.0f", state["event"])
		}
		if time.Since(began) > time.Minute {
			t.Fatal(err)
		}
	}
}

// On no page does a long text, or one in another direction, take the place of others, also where something is
// opened, in either theme.
func TestLayout(t *testing.T) {
	from := firstState(t)
	fillLong(t)
	for _, width := range []int64{360, 1280} {
		b := newTab(t)
		b.signIn(annToken)
		b.run(emulation.SetTimezoneOverride("Europe/Berlin"), chromedp.EmulateViewport(width, 900))
		for _, path := range layoutPaths(from) {
			name := fmt.Sprintf("%.60s, %d px", path, width)
			b.run(theme("light"))
			b.open(0, path)
			b.check(name, width)
			b.run(chromedp.Evaluate(`for (const d of document.querySelectorAll("details")) d.open = true`, nil))
			b.check(name+", opened", width)
			b.run(theme("dark"))
			b.checkContrast(name + ", opened, dark")
		}
	}
}

// The page of a job that has failed often shows its last dispatch, and the others when they are asked for.
func TestManyAttempts(t *testing.T) {
	fillLong(t)
	b := newTab(t)
	b.signIn(annToken)
	for width, most := range map[int64]int{360: 5500, 1280: 3000} {
		b.run(chromedp.EmulateViewport(width, 900))
		b.open(0, "jobs/"+longQueue+":often")
		if height := eval[int](b, `document.documentElement.scrollHeight`); height > most {
			t.Errorf("at %d px the page is %d px high, want at most %d", width, height, most)
		}
		b.await(`document.querySelector(".earlier > summary").innerText === "39 earlier dispatches" && document.querySelectorAll(".panel > .timeline .step-failed").length === 1`)
		b.run(chromedp.Click(`.earlier > summary`))
		b.await(`document.querySelectorAll(".earlier .step-failed").length === 39 && document.querySelector(".earlier .step").innerText.includes("dispatch 1")`)
	}
	b.run(chromedp.Click(`//dt[text()="Dead letter"]/following-sibling::dd[1]/a`), chromedp.WaitVisible(`//h1[text()="Dead letters"]`))
	b.await(`document.querySelectorAll("tbody tr").length === 1 && document.querySelector("tbody tr").innerText.includes("smtp_")`)
}
