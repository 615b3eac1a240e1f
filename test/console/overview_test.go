package console

import (
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// The overview shows what the node has counted, in the window that the address has.
func TestOverview(t *testing.T) {
	b := newTab(t)
	b.signIn(annToken)
	b.open(0, "")
	b.await(`document.querySelectorAll("svg.chart path.line").length === 7 && document.querySelector("svg.strip rect.span")`)
	b.await(`[...document.querySelectorAll("svg.chart path.line-1")].every((p) => p.getAttribute("d").length > 10)`)
	b.await(`document.querySelectorAll("table.bars tr").length > 0 && document.querySelectorAll("svg.strip path").length > 0`)
	b.run(chromedp.Click(`//nav/a[text()="15m"]`))
	b.await(`location.search === "?range=15m" && document.querySelector("svg.chart").textContent.includes("15 min ago")`)
}

// A past state is marked as one, with its event; two can be compared.
func TestPast(t *testing.T) {
	for deadline := time.Now().Add(40 * time.Second); ; time.Sleep(200 * time.Millisecond) { // until the first state is stored
		if _, err := send("GET", "/v1/state", nil); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	b := newTab(t)
	b.signIn(annToken)
	if _, err := send("POST", "/v1/queues/reports/pause", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := send("POST", "/v1/queues/reports/resume", nil); err != nil {
		t.Fatal(err)
	}
	b.run(chromedp.EmulateViewport(360, 800))
	b.open(0, "past?queue=reports")
	b.checkInBothThemes("past", 360)
	b.await(`document.querySelector("#content .notice").innerText.match(/This is the past: queue reports after event \d+/)`)
	// Steps back until the event at which the queue was paused.
	for eval[bool](b, `!document.querySelector("tbody tr").innerText.includes("paused")`) {
		number := eval[string](b, `document.querySelector("#content .notice").innerText.match(/event (\d+)/)[1]`)
		b.run(chromedp.Click(`//a[text()="Event before"]`))
		b.await(`document.querySelector("html[data-ready]") && !document.querySelector("#content .notice").innerText.includes("event ` + number + ` ")`)
	}
	b.run(chromedp.Click(`//button[text()="Show what differs"]`), chromedp.WaitVisible(`//h1[text()="What has changed"]`))
	b.checkInBothThemes("diff", 360)
	b.await(`document.querySelector("tbody").innerText.match(/queue reports\s+paused\s+running/)`)
	b.open(0, "past")
	eval[bool](b, `(() => { const r = document.querySelector("[name=ago]"); r.value = 0; return r.dispatchEvent(new Event("change")); })()`)
	b.await(`location.search.includes("ago=0") && document.querySelector("#content .notice").innerText.includes("This is the past: the yard")`)
}

// checkInBothThemes is check for a page in dark and light, with the names of its controls.
func (b *tab) checkInBothThemes(page string, width int64) {
	b.t.Helper()
	for _, theme := range []string{"dark", "light"} {
		b.run(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}))
		b.await(`document.getAnimations().length === 0`) // of the colours
		b.check(page+", "+theme, width)
	}
	b.checkNames(page)
}
