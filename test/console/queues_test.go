package console

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
)

// Queues are found by a part of their name, sorted by their jobs, and shown a page at a time; those of
// the yard itself come last.
func TestQueues(t *testing.T) {
	const many = 120 // more than a page has
	for i := range many {
		if _, err := send("PUT", fmt.Sprintf("/v1/queues/many-%03d", i), map[string]any{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for i := range many {
			_, _ = send("DELETE", fmt.Sprintf("/v1/queues/many-%03d", i), nil) // that with a job stays
		}
	})
	if _, err := send("POST", "/v1/queues/many-077/jobs", map[string]any{"function": "none", "id": "waits"}); err != nil {
		t.Fatal(err)
	}
	b := newTab(t)
	b.signIn(annToken)
	names := func() []string {
		return eval[[]string](b, `[...document.querySelectorAll(".queues tbody tr")].map((r) => r.dataset.row)`)
	}
	b.open(0, "queues?find=MANY")
	if got := names(); len(got) != 100 || got[0] != "many-000" || got[99] != "many-099" {
		t.Errorf("first page: %q", got)
	}
	b.run(chromedp.Click(`.pages [rel="next"]`))
	b.await(`document.querySelector(".queues tbody tr").dataset.row === "many-100"`)
	if got := names(); len(got) != 20 {
		t.Errorf("second page: %q", got)
	}
	b.open(0, "queues?find=many&sort=waiting")
	b.await(`document.querySelector(".queues tbody tr").dataset.row === "many-077"`)
	b.open(0, "queues")
	b.run(chromedp.SetValue(`[name="find"]`, "many"), chromedp.Click(`[name="jobs"]`), chromedp.Click(`[role="search"] button`))
	b.await(`document.querySelectorAll(".queues tbody tr").length === 1 && document.querySelector(".queues tbody tr").dataset.row === "many-077"`)
	b.open(0, "queues?page=9")
	if got := names(); len(got) == 0 || got[len(got)-1] != "_system" {
		t.Errorf("last page: %q", got)
	}
	b.open(0, "queues?find=webhooks")
	b.await(`document.querySelector(".queues .spark path")`)
}
