package console

import (
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// Jobs are found by a query, and those that are selected are changed together.
func TestJobs(t *testing.T) {
	b := newTab(t)
	b.signIn(annToken)
	b.run(chromedp.KeyEvent("/"))
	b.await(`document.activeElement.matches("[data-search]")`)
	eval[string](b, `document.activeElement.value = ""`)
	b.run(chromedp.SendKeys(`[data-search]`, "queue:reports state:waiting"+kb.Enter), chromedp.WaitVisible(`//h1[text()="Jobs"]`))
	b.await(`document.querySelectorAll("tbody tr").length === 7`)
	b.run(chromedp.KeyEvent("j"), chromedp.KeyEvent("x"), chromedp.KeyEvent("j"), chromedp.KeyEvent("x"))
	b.await(`document.querySelector("[data-selected]").innerText === "2 selected"`)
	b.run(chromedp.Click(`//summary[text()="Cancel…"]`), chromedp.Click(`//button[text()="Cancel them"]`), chromedp.WaitVisible(`.flash`))
	b.await(`document.querySelector(".flash").innerText === "2 jobs cancelled."`)
	b.await(`document.querySelectorAll("tbody tr").length === 5`)
	b.open(0, "jobs?q=stat:failed")
	b.await(`document.querySelector("mark").innerText === "stat"`)
	b.open(0, "jobs?q=webhooks:echo")
	b.await(`location.pathname.match(/jobs\/[0-9a-f-]{36}$/) && document.querySelector("#content").innerText.includes("acme")`)
}

// enter presses the key as one event, whose default a page can prevent.
var enter = input.DispatchKeyEvent(input.KeyDown).WithKey("Enter").WithCode("Enter").WithText("\r").WithWindowsVirtualKeyCode(13)

// The search proposes fields and values, by keyboard, and a search that someone has named is kept.
func TestCompletion(t *testing.T) {
	b := newTab(t)
	b.signIn(annToken)
	b.run(chromedp.SendKeys(`[data-search]`, "que"))
	b.await(`document.querySelector("#proposals li")?.innerText.startsWith("queue:")`)
	const chosen = `document.getElementById(document.querySelector("[data-search]").getAttribute("aria-activedescendant"))?.innerText`
	b.run(chromedp.KeyEvent(kb.ArrowDown))
	b.await(chosen)
	b.run(enter, chromedp.KeyEvent("web"))
	b.await(`document.querySelector("#proposals li")?.innerText.startsWith("webhooks")`)
	if got := eval[string](b, `document.querySelector("[data-search]").getAttribute("aria-expanded")`); got != "true" {
		t.Errorf("with proposals the search has aria-expanded=%q", got)
	}
	b.run(chromedp.KeyEvent(kb.ArrowDown))
	b.await(chosen + `.trim() === "webhooks"`)
	b.run(enter, chromedp.KeyEvent("function:e"))
	b.await(`document.querySelector("#proposals li")?.innerText.startsWith("echo")`)
	b.run(chromedp.KeyEvent(kb.ArrowDown))
	b.await(chosen + `.trim() === "echo"`)
	b.run(chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Escape), chromedp.KeyEvent(kb.Enter))
	b.await(`document.querySelector("[data-search]").value.trim() === "queue:webhooks function:echo" && document.querySelectorAll("tbody tr").length === 1`)
	b.run(chromedp.SendKeys(`.view input`, "Echoes"+kb.Enter))
	b.open(0, "jobs")
	b.run(chromedp.Click(`//span[@id="views"]/a[text()="Echoes"]`))
	b.await(`location.search.includes("echo") && document.querySelectorAll("tbody tr").length === 1`)
	eval[bool](b, `localStorage.clear() === undefined`)
}

// An operation on all jobs that match shows first what it would do, then how far it is.
func TestOperation(t *testing.T) {
	b := newTab(t)
	b.signIn(annToken)
	b.open(0, "jobs?q=queue:webhooks+state:failed")
	eval[bool](b, `[...document.querySelectorAll("a")].find((a) => a.innerText === "requeue all…").click() === undefined`) // the page may be updated meanwhile
	b.run(chromedp.WaitVisible(`//h2[text()="What would happen"]`))
	eval[string](b, `document.querySelector("[name=params]").value = '{"final": null, "note": "edited"}'`)
	b.run(chromedp.Click(`//button[text()="Dry run"]`))
	b.await(`document.querySelectorAll("tbody tr").length === 7 && document.querySelector("tbody").innerText.includes("edited")`)
	b.run(chromedp.SendKeys(`[name=rate]`, "1"), chromedp.SendKeys(`[name=reason]`, "a test"), chromedp.Click(`.acts .primary`), chromedp.WaitVisible(`//button[text()="Pause"]`))
	b.await(`document.querySelector("#live").innerText === "live" && parseInt(document.querySelector("[data-matched]").innerText) > 0`)
	b.run(chromedp.Click(`//button[text()="Pause"]`), chromedp.WaitVisible(`//button[text()="Resume"]`), chromedp.Click(`//button[text()="Resume"]`), chromedp.WaitVisible(`//button[text()="Pause"]`))
	eval[string](b, `document.querySelector("[name=rate]").value = ""`)
	b.run(chromedp.Click(`//button[text()="Change the rate"]`))
	b.await(`document.querySelector(".headline").innerText.includes("done") && document.querySelector(".facts").innerText.match(/Changed\s+7/)`)
	b.open(1, "operations")
	b.await(`document.querySelector("tbody tr").innerText.match(/requeue[^]*done[^]*ann[^]*a test/)`)
}
