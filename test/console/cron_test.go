package console

import (
	"testing"

	"github.com/chromedp/chromedp"
)

// A cron entry is added, refused at its field, edited, run and removed.
func TestCron(t *testing.T) {
	b := newTab(t)
	b.signIn(annToken)
	b.open(1, "cron")
	b.tolerate(true) // the refused form is answered with 400
	b.run(chromedp.Click(`//summary[text()="Add an entry"]`), chromedp.SendKeys(`.edit [name=name]`, "clocks"), chromedp.SendKeys(`.edit [name=schedule]`, "*/90 * * * *"),
		chromedp.SendKeys(`.edit [name=time_zone]`, "Europe/Berlin"), chromedp.SendKeys(`.edit [name=queue]`, "nightly"), chromedp.SendKeys(`.edit [name=function]`, "build"),
		chromedp.SendKeys(`.edit [name=params]`, "{\n\"n\": 1}"), chromedp.Click(`//button[text()="Add"]`), chromedp.WaitVisible(`.refused`))
	b.await(`document.querySelector(".refused").innerText.includes("@every 90m") && document.activeElement.name === "schedule" && document.querySelector("[name=function]").value === "build"`)
	b.tolerate(false)
	eval[string](b, `document.activeElement.value = "0 30 2 29 3 *"`)
	b.run(chromedp.Click(`//button[text()="Add"]`), chromedp.WaitVisible(`//h2[text()="Next times"]`))
	b.await(`document.querySelector(".flash").innerText === "Cron entry clocks added." && location.pathname.endsWith("/cron/clocks")`)
	// Both clocks of the zone are set in the coming year: in the night of a Sunday.
	for schedule, note := range map[string]string{"0 30 2 * 3 0": "skipped hour: runs at 03:00", "0 30 2 * 10 7": "double hour: first"} {
		eval[string](b, `document.querySelector("[name=schedule]").value = "`+schedule+`"`)
		b.run(chromedp.Click(`//button[text()="Save"]`))
		b.await(`document.querySelector(".flash")?.innerText === "Cron entry clocks changed." && document.querySelector("tbody").innerText.includes("` + note + `")`)
	}
	b.run(chromedp.Click(`//button[text()="Run now"]`), chromedp.WaitVisible(`//h1[contains(text(), "Job")]`))
	b.await(`document.querySelector("#content").innerText.includes("nightly")`)
	b.open(0, "cron/clocks")
	b.run(chromedp.Click(`//summary[text()="Remove…"]`), chromedp.SendKeys(`.confirm input[name="reason"]`, "tried"), chromedp.Click(`//button[text()="Remove"]`), chromedp.WaitVisible(`.flash`))
	b.await(`document.querySelector(".flash").innerText.startsWith("Cron entry clocks removed.") && !document.querySelector("#content").innerText.includes("clocks ")`)
	b.open(0, "events?type=operator-acted")
	b.await(`document.querySelector("#content").innerText.match(/cron.remove[^]*clocks[^]*by ann[^]*through console[^]*tried/)`)
}
