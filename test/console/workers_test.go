package console

import (
	"testing"

	"github.com/chromedp/chromedp"
)

// One worker is drained after a confirmation, with a reason, and resumed.
func TestWorkers(t *testing.T) {
	b := newTab(t)
	b.signIn(annToken)
	b.open(1, "workers")
	row := `//tr[contains(., "mailer")]`
	b.run(chromedp.Click(row+`//summary`), chromedp.SendKeys(row+`//input[@name="reason"]`, "leaks"), chromedp.Click(row+`//button[text()="Drain"]`), chromedp.WaitVisible(`.flash`))
	b.await(`document.querySelector(".flash").innerText.startsWith("mailer is given no more jobs.")`)
	b.await(`document.querySelector("#content").innerText.includes("drained")`)
	b.open(0, "events?type=operator-acted")
	b.await(`document.querySelector("#content").innerText.match(/worker.drain[^]*mailer[^]*by ann[^]*through console[^]*leaks/)`)
	b.open(0, "workers")
	b.run(chromedp.Click(row+`//button[text()="Resume"]`), chromedp.WaitVisible(`.flash`))
	b.await(`document.querySelector(".flash").innerText === "mailer takes jobs again." && !document.querySelector("#content").innerText.includes("drained")`)
}
