package console

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// pagePaths are the pages that are checked, by name.
var pagePaths = []struct{ name, path string }{
	{"overview", ""}, {"queues", "queues"}, {"queue", "queues/mail"}, {"schema", "queues/mail/schema"}, {"jobs", "jobs"}, {"job", "jobs/webhooks:fails"}, {"operations", "operations"}, {"preview", "operations/new?action=requeue&query=state:failed&params=%7B%22final%22:false%7D"}, {"workers", "workers"},
	{"dead-letters", "dead-letters"}, {"cron", "cron"}, {"cron-entry", "cron/nightly"}, {"limits", "limits"}, {"limit", "limits/smtp"}, {"members", "members"}, {"events", "events"}, {"settings", "settings"}, {"past", "past"},
}

// lowContrast is a script that returns texts whose contrast with their background is less
// than 4.5 to 1.
const lowContrast = `(() => {
	const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
	const parse = (c) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
	const light = ([r, g, b]) => { const f = (v) => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
	const faults = [];
	for (const e of document.querySelectorAll("body *")) {
		const empty = e.placeholder && !e.value, style = getComputedStyle(e, empty ? "::placeholder" : null);
		const text = empty ? e.placeholder : [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.nodeValue.trim()).join("");
		if (!text || !e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || e.closest(":disabled, option, title, .hide")) continue;
		let back = e.closest("svg") ?? e;
		while (back && parse(getComputedStyle(back).backgroundColor)[3] < 255) back = back.parentElement;
		const color = parse(e instanceof SVGElement ? style.fill : style.color), behind = parse(getComputedStyle(back ?? document.documentElement).backgroundColor);
		let opacity = color[3] / 255 * style.opacity;
		for (let p = e.parentElement; p; p = p.parentElement) opacity *= getComputedStyle(p).opacity;
		const [a, b] = [light(color.map((c, i) => c * opacity + behind[i] * (1 - opacity))), light(behind)];
		const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
		if (ratio < 4.5) faults.push(e.nodeName + "." + e.className + " " + text.slice(0, 30) + " " + ratio.toFixed(2));
	}
	return faults;
})()`

// misplaced is a script that returns lists whose columns reach beyond their edge, texts smaller than
// 11 px, as they are on the screen, what reaches beyond its panel, and states that are broken into lines.
const misplaced = `(() => {
	const faults = [];
	for (const e of document.querySelectorAll(".scroll")) {
		if (e.scrollWidth > e.clientWidth + 1) faults.push("columns of " + e.scrollWidth + " px in " + e.clientWidth);
	}
	for (const e of document.querySelectorAll("body *")) {
		const text = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.nodeValue.trim()).join("");
		if (!text || !e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || e.closest(".hide, title, script")) continue;
		const scale = e instanceof SVGGraphicsElement ? e.getScreenCTM().a : 1;
		const size = parseFloat(getComputedStyle(e).fontSize) * scale;
		if (size < 10.95) faults.push(e.nodeName + " " + text.slice(0, 30) + " has " + size.toFixed(1) + " px");
	}
	for (const e of document.querySelectorAll(":is(.panel, .card) :is(a, button, input, time, td, th, .chip, .mark, .tag, text, line)")) {
		const panel = e.closest(".panel, .card").getBoundingClientRect(), box = e.getBoundingClientRect();
		let scrolls = e.parentElement;
		while (scrolls && !/auto|scroll|hidden/.test(getComputedStyle(scrolls).overflowX)) scrolls = scrolls.parentElement;
		const inside = scrolls?.closest(".panel, .card"); // what is cut or scrolled there cannot reach beyond the panel
		if (inside && scrolls !== e && scrolls.getBoundingClientRect().right <= panel.right + 1) continue;
		if (box.width > 0 && box.right > panel.right + 1 && e.checkVisibility()) faults.push(e.nodeName + " " + e.textContent.slice(0, 30) + " ends " + Math.round(box.right - panel.right) + " px right of its panel");
	}
	for (const e of document.querySelectorAll(":is(td, dd) > .mark.ok, .chip")) {
		if (e.getClientRects().length > 0 && e.offsetHeight > 1.9 * parseFloat(getComputedStyle(e).lineHeight)) faults.push("the state " + e.textContent + " is broken into lines");
	}
	return [...new Set(faults)];
})()`

// timeless is a script that returns times of day without a zone. Texts of users are in elements of their own.
const timeless = `(() => {
	const faults = [], zone = /^\s*(UTC|GMT|Z|CES?T|[+-]\d\d)/;
	for (const e of document.querySelectorAll("#content :is(td, dd, p, li, span, time, label, output, h2)")) {
		if (e.querySelector("td, dd, p, li, label") || e.closest("pre, .mark, .value, code") || !e.checkVisibility()) continue;
		for (const m of e.innerText.matchAll(/(?<![-+:\d])\d{1,2}:\d\d(?!\d)(:\d\d(?!\d)(\.\d+)?)?( ?[AP]M)?/g)) {
			if (!zone.test(e.innerText.slice(m.index + m[0].length))) faults.push(e.innerText.slice(0, 60));
		}
	}
	return [...new Set(faults)];
})()`

// untouchable is a script that returns controls that are smaller than 24 px in either direction.
const untouchable = `(() => {
	const faults = [];
	for (const e of document.querySelectorAll("a:not(.skip), button, summary, select, textarea, input:not([type=hidden])")) {
		const box = e.getBoundingClientRect();
		if (e.checkVisibility() && (box.width < 23.9 || box.height < 23.9)) faults.push(e.outerHTML.slice(0, 80) + " has " + box.width.toFixed(1) + " × " + box.height.toFixed(1) + " px");
	}
	return [...new Set(faults)];
})()`

// nameless returns the controls of a page that have no name in the accessibility tree.
func (b *tab) nameless() (nodes []string) {
	b.t.Helper()
	// Not the type of the driver, which does not accept names that it does not know.
	type value struct {
		Value any `json:"value"`
	}
	var tree struct {
		Nodes []struct {
			Ignored bool  `json:"ignored"`
			Role    value `json:"role"`
			Name    value `json:"name"`
			ID      int64 `json:"backendDOMNodeId"`
		} `json:"nodes"`
	}
	b.run(chromedp.ActionFunc(func(ctx context.Context) error { return cdp.Execute(ctx, "Accessibility.getFullAXTree", nil, &tree) }))
	controls := []string{"button", "link", "textbox", "searchbox", "checkbox", "combobox", "slider", "image", "DisclosureTriangle", "navigation", "dialog"}
	for _, n := range tree.Nodes {
		role, name := fmt.Sprint(n.Role.Value), strings.TrimSpace(fmt.Sprint(n.Name.Value))
		if !n.Ignored && slices.Contains(controls, role) && (n.Name.Value == nil || name == "") {
			nodes = append(nodes, fmt.Sprintf("%s of node %d", role, n.ID))
		}
	}
	if len(tree.Nodes) == 0 {
		b.t.Fatal("there is no accessibility tree")
	}
	return nodes
}

// Every page is shown without errors, in both themes, at both widths, with names for all
// controls and enough contrast.
func TestPages(t *testing.T) {
	b := newTab(t)
	b.signIn(annToken)
	for _, c := range []struct {
		theme string
		width int64
		pages int
	}{{"light", 1440, len(pagePaths)}, {"dark", 360, len(pagePaths)}, {"light", 1280, len(pagePaths)}, {"dark", 1280, len(pagePaths)}, {"light", 3840, 2}} {
		b.run(theme(c.theme), chromedp.EmulateViewport(c.width, 900))
		for _, p := range pagePaths[:c.pages] {
			b.open(0, p.path)
			b.check(fmt.Sprintf("%s, %s, %d px", p.name, c.theme, c.width), c.width)
			if c.width != 1440 || c.theme == "dark" {
				continue // the names are the same
			}
			b.checkNames(p.name)
		}
	}
}

// checkNames reports controls without a name.
func (b *tab) checkNames(page string) {
	b.t.Helper()
	if nodes := b.nameless(); len(nodes) > 0 {
		b.t.Errorf("%s: no name: %s", page, strings.Join(nodes, "; "))
	}
}

// check reports what is wrong with how a page is shown.
func (b *tab) check(name string, width int64) {
	b.t.Helper()
	if got := eval[int64](b, `document.documentElement.scrollWidth`); got > width {
		b.t.Errorf("%s: the page is %d px wide", name, got)
	}
	if eval[bool](b, `!!document.querySelector(".empty.bad")`) {
		b.t.Errorf("%s: %s", name, eval[string](b, `document.querySelector(".empty.bad").innerText`))
	}
	if faults := eval[[]string](b, misplaced); len(faults) > 0 {
		b.t.Errorf("%s: %s", name, strings.Join(faults, "; "))
	}
	b.checkContrast(name)
	if faults := eval[[]string](b, timeless); len(faults) > 0 {
		b.t.Errorf("%s: no zone in %q", name, faults)
	}
	if width > 360 {
		return
	}
	if faults := eval[[]string](b, untouchable); len(faults) > 0 {
		b.t.Errorf("%s: too small: %s", name, strings.Join(faults, "; "))
	}
}

// theme makes a tab prefer a theme, and change its colours at once.
func theme(name string) chromedp.Action {
	return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}, {Name: "prefers-reduced-motion", Value: "reduce"}})
}

// checkContrast reports texts that are hard to read.
func (b *tab) checkContrast(name string) {
	b.t.Helper()
	if faults := eval[[]string](b, lowContrast); len(faults) > 0 {
		b.t.Errorf("%s: contrast of %s", name, strings.Join(faults, "; "))
	}
}

// Without scripts, every page has its contents, times are in UTC, and forms act.
func TestWithoutScripts(t *testing.T) {
	b := newTab(t)
	b.signIn(annToken)
	b.run(emulation.SetScriptExecutionDisabled(true))
	open := func(path string) {
		b.run(chromedp.Navigate("http://"+shared.yard.Nodes[0].HTTP+"/console/"+path), chromedp.WaitReady("#content"))
	}
	for _, p := range pagePaths {
		open(p.path)
		if eval[bool](b, `"ready" in document.documentElement.dataset || !!document.querySelector(".empty.bad")`) {
			t.Fatalf("%s: %s", p.name, eval[string](b, `document.body.innerText`))
		}
		if n := eval[int](b, `document.querySelectorAll("#content :is(table, dl, form, .empty, .events)").length`); n == 0 {
			t.Errorf("%s has no contents: %s", p.name, eval[string](b, `document.body.innerText`))
		}
		if text := eval[string](b, `[...document.querySelectorAll("#content time")].map((t) => t.innerText).find((t) => !t.endsWith(" UTC")) ?? ""`); text != "" {
			t.Errorf("%s has the time %q", p.name, text)
		}
		if n := eval[int](b, `[...document.querySelectorAll("#live, #lost, [data-help], [data-theme-toggle]")].filter((e) => !e.hidden).length`); n > 0 {
			t.Errorf("%s shows %d elements that need scripts", p.name, n)
		}
	}
	open("queues/reports")
	b.run(chromedp.Click(`//button[text()="Pause"]`), chromedp.WaitVisible(`//button[text()="Resume"]`), chromedp.Click(`//button[text()="Resume"]`), chromedp.WaitVisible(`//button[text()="Pause"]`))
}

// An observer sees everything and no button that acts.
func TestRoles(t *testing.T) {
	b := newTab(t)
	b.open(0, "queues")
	b.await(`document.querySelector("h1").innerText === "Sign in"`)
	b.tolerate(true) // of the response 401
	b.run(chromedp.SendKeys(`input[name=token]`, "wrong"+kb.Enter), chromedp.WaitVisible(`.flash.bad`))
	b.tolerate(false)
	b.signIn(bobToken)
	for _, p := range pagePaths {
		b.open(0, p.path)
		if n := eval[int](b, `document.querySelectorAll("#content [action^='/console/act/'] button, #content [formaction]").length`); n > 0 {
			t.Errorf("%s: an observer has %d buttons that act", p.name, n)
		}
	}
	b.run(chromedp.Click(`//button[text()="Sign out"]`), chromedp.WaitVisible(`//h1[text()="Sign in"]`))
	b.open(0, "queues")
	b.await(`document.querySelector("h1").innerText === "Sign in"`)
}

// What users do changes the yard and is in the history with their name.
func TestActs(t *testing.T) {
	b := newTab(t)
	b.signIn(annToken)
	b.open(1, "queues/reports") // cookies are for all ports of a host
	b.run(chromedp.Click(`//button[text()="Pause"]`), chromedp.WaitVisible(`//button[text()="Resume"]`))
	b.run(chromedp.Click(`//button[text()="Resume"]`), chromedp.WaitVisible(`//button[text()="Pause"]`))
	b.run(chromedp.SetValue(`input[name=concurrency_limit]`, "7"), chromedp.SendKeys(`form[action$=queue-set] input[name=reason]`, "a test"), chromedp.Click(`form[action$=queue-set] button`))
	b.await(`document.querySelector("input[name=concurrency_limit]")?.defaultValue === "7"`) // the page is loaded again
	if q, err := send("GET", "/v1/queues/reports", nil); err != nil || fmt.Sprint(q["concurrency_limit"]) != "7" {
		t.Errorf("the limit is %v, %v", q["concurrency_limit"], err)
	}
	b.open(2, "events?type=operator-acted&queue=reports")
	b.await(`document.querySelector("#content").innerText.match(/queue.set[^]*by ann[^]*through console[^]*a test/)`)
}

// A setting that is refused is named at its field, what was entered stays, and the page goes
// on being live at its own address.
func TestRefusedSetting(t *testing.T) {
	b := newTab(t)
	b.signIn(annToken)
	b.open(0, "queues/reports")
	b.tolerate(true) // of the response 400
	b.run(chromedp.SetValue(`form[action$=queue-set] input[name=priority]`, "12"), chromedp.SetValue(`input[name=index]`, "params.month"), chromedp.Click(`//h2[text()="Settings"]/..//button[text()="Save"]`), chromedp.WaitVisible(`input[name=priority][aria-invalid]`))
	b.tolerate(false)
	b.await(`location.pathname === "/console/queues/reports" && document.querySelector("#live").innerText === "live" && document.activeElement.name === "priority"`)
	b.await(`document.getElementById(document.activeElement.getAttribute("aria-describedby")).innerText.includes("0 to 9")`)
	b.check("a refused setting", 1280)
	b.run(chromedp.SetValue(`form[action$=queue-set] input[name=priority]`, "3"), chromedp.Click(`//h2[text()="Settings"]/..//button[text()="Save"]`), chromedp.WaitVisible(`.flash:not(.bad)`))
	if q, err := send("GET", "/v1/queues/reports", nil); err != nil || fmt.Sprint(q["priority"], q["index"]) != "3 [params.month]" {
		t.Errorf("the queue is %v, %v", q, err)
	}
	b.run(chromedp.Click(`//summary[text()="Add a rule"]`), chromedp.SendKeys(`details[open] input[name=function]`, "build"), chromedp.SendKeys(`details[open] input[name=backoff_ms]`, "5s"), chromedp.Click(`details[open] fieldset > button`), chromedp.WaitVisible(`//summary[text()="build"]`))
	b.run(chromedp.Click(`//a[text()="Add a schema"]`), chromedp.WaitVisible(`textarea[name=schema]`), chromedp.SendKeys(`input[name=function]`, "build"), chromedp.SetValue(`textarea[name=schema]`, `{"type": "object"}`), chromedp.Click(`//button[text()="Save"]`), chromedp.WaitVisible(`//a[text()="build"]`))
	b.run(chromedp.Click(`//a[text()="build"]`), chromedp.WaitVisible(`//summary[text()="Remove…"]`), chromedp.Click(`//summary[text()="Remove…"]`), chromedp.Click(`//button[text()="Remove"]`), chromedp.WaitVisible(`.flash`))
	b.await(`document.querySelector(".flash").innerText === "Schema removed." && !document.querySelector('#content a[href*="schema?"]')`)
}

// A setting that someone has changed since the page was shown is replaced only if it is saved
// again.
func TestStaleSetting(t *testing.T) {
	type object = map[string]any
	if _, err := send("PUT", "/v1/queues/stale", object{}); err != nil {
		t.Fatal(err)
	}
	if _, err := send("PATCH", "/v1/queues/stale", object{
		"concurrency_limit": 4, "limits": []string{"smtp"}, "priority": 0, "age_ms": 90_061_001, "max_attempts": 3, "timeout_ms": 1500, "retry_on_timeout": true, "allow_job_overrides": false,
		"key": "params.a", "key_optional": true, "fair": true, "weights": object{"a\u202e": 3, `\u{41}`: 4}, "index": []string{"params.a", "params.b"},
		"retention": object{"finished": object{"age_ms": 7_200_000, "count": 10}, "failed": object{"age_ms": 86_400_000, "count": 1000}, "results": object{"age_ms": 60_000}},
	}); err != nil {
		t.Fatal(err)
	}
	b := newTab(t)
	b.signIn(annToken)
	b.open(0, "queues/stale")
	b.run(chromedp.Evaluate(`for (const f of document.querySelectorAll("form[action$=queue-set] fieldset :is(input:not([type=hidden]), textarea)")) {
		if (f.type === "checkbox") f.checked = !f.checked;
		else if (f.name.endsWith("_ms")) f.value = "3h";
		else if (f.name === "weights") f.value = f.value.replace("=3", "=5").replace("=4", "=6");
		else f.value = { concurrency_limit: "9", limits: "", priority: "1", max_attempts: "4", key: "params.b", index: "params.b", reason: "" }[f.name] ?? "20";
		f.dispatchEvent(new Event("input", { bubbles: true }));
	}`, nil))
	if _, err := send("PATCH", "/v1/queues/stale", object{"concurrency_limit": 5}); err != nil {
		t.Fatal(err)
	}
	save := chromedp.Click(`//h2[text()="Settings"]/..//button[text()="Save"]`)
	b.tolerate(true) // of the response 409
	b.run(save, chromedp.WaitVisible(`input[name=concurrency_limit][aria-invalid]`))
	b.tolerate(false)
	b.await(`document.querySelector(".flash").innerText === "Not done: since this page was shown, concurrency limit was changed to 5; save again to replace that" && document.querySelector("input[name=was-concurrency_limit]").value === "5"`)
	b.run(save, chromedp.WaitVisible(`.flash:not(.bad)`))
	q, err := send("GET", "/v1/queues/stale", nil)
	if got := fmt.Sprint(q["concurrency_limit"], q["priority"], q["timeout_ms"], q["allow_job_overrides"], q["fair"], q["index"], q["weights"]); err != nil || got != "9 1 1.08e+07 true <nil> [params.b] map[\\u{41}:6 a\u202e:5]" {
		t.Errorf("the queue has %s, %v", got, err)
	}
}

// Dead letters are counted by a dry run, then requeued.
func TestDeadLetters(t *testing.T) {
	b := newTab(t)
	b.signIn(annToken)
	b.open(0, "dead-letters?queue=webhooks")
	b.await(`document.querySelectorAll("tbody tr").length === 7`)
	b.run(chromedp.Click(`input[name=all]`), chromedp.Click(`//button[text()="Dry run"]`), chromedp.WaitVisible(`.flash`))
	b.await(`document.querySelector(".flash").innerText.startsWith("Dry run: 7 retried")`)
	b.run(chromedp.Click(`tbody input[name=letter]`), chromedp.Click(`//button[text()="Requeue"]`), chromedp.WaitVisible(`.flash`))
	b.await(`document.querySelector(".flash").innerText === "1 retried."`)
}

// Texts of users are shown, with marks in place of what is not visible, and obeyed nowhere.
func TestHostile(t *testing.T) {
	b := newTab(t)
	b.signIn(annToken)
	quoted := url.QueryEscape(hostile)
	b.tolerate(true) // of responses that refuse the address
	for _, path := range []string{
		"jobs/mail:hostile", "jobs?q=queue:mail", "limits/smtp", "events", "dead-letters", "jobs/reports:large", "queues/mail", "past", "diff?from=1",
		"jobs?q=" + quoted, "operations", "operations/new?action=retry&query=" + quoted, "operations/new?action=requeue&query=id:hostile&params=" + quoted,
		"past?at=" + quoted, "past?queue=" + quoted, "diff?from=" + quoted, "events?queue=" + quoted, "dead-letters?error=" + quoted, "queues/mail/schema?function=" + quoted,
	} {
		b.open(0, path)
		if title := eval[string](b, `document.title`); strings.Contains(title, "taken") {
			t.Errorf("%s: a text was executed", path)
		}
		if eval[bool](b, `/[\u202e\u0007]/.test(document.body.innerText)`) {
			t.Errorf("%s: a text has characters that are not visible", path)
		}
		if size := eval[int](b, `document.documentElement.outerHTML.length`); size > 1<<20 {
			t.Errorf("%s: %d characters", path, size)
		}
	}
	b.tolerate(false)
	b.open(0, "jobs/mail:hostile")
	b.await(`document.body.innerText.includes("<script>document.title='taken'</script>\\u{202e}gpj.exe\\u{7}")`)
}

// Keys lead to pages, open help and switch the theme, which the next page has, too.
func TestKeyboard(t *testing.T) {
	b := newTab(t)
	b.signIn(annToken)
	b.run(chromedp.KeyEvent("g"), chromedp.KeyEvent("m"), chromedp.WaitVisible(`//h1[text()="Members"]`), chromedp.KeyEvent("?"), chromedp.WaitVisible(`dialog[open]`), chromedp.KeyEvent(kb.Escape))
	b.await(`!document.querySelector("dialog[open]")`)
	before := eval[string](b, `getComputedStyle(document.body).backgroundColor`)
	b.run(chromedp.KeyEvent("t"))
	after := eval[string](b, `getComputedStyle(document.body).backgroundColor`)
	if after == before {
		t.Error("the key t does not switch the theme")
	}
	b.run(chromedp.KeyEvent("g"), chromedp.KeyEvent("q"), chromedp.WaitVisible(`//h1[text()="Queues"]`))
	if got := eval[string](b, `getComputedStyle(document.body).backgroundColor`); got != after {
		t.Errorf("the next page is %s, not %s", got, after)
	}
	b.run(chromedp.KeyEvent("j"), chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(`//h1[starts-with(text(), "Queue ")]`))
}

// A page follows the yard. What a person has begun to type stays.
func TestLive(t *testing.T) {
	b := newTab(t)
	b.signIn(annToken)
	b.open(0, "queues/reports")
	b.await(`document.querySelector("#live").innerText === "live"`)
	b.run(chromedp.SendKeys(`form[action$=queue-set] input[name=max_attempts]`, "9"))
	if _, err := send("POST", "/v1/queues/reports/pause", nil); err != nil {
		t.Fatal(err)
	}
	b.run(chromedp.WaitVisible(`//button[text()="Resume"]`))
	if got := eval[string](b, `document.querySelector("input[name=max_attempts]").value`); got != "9" {
		t.Errorf("after an update the field has %q", got)
	}
	if _, err := send("POST", "/v1/queues/reports/resume", nil); err != nil {
		t.Fatal(err)
	}
	b.run(chromedp.WaitVisible(`//button[text()="Pause"]`))
}

// When the node of a page is killed, the page goes on with another one, in the same session,
// but not before the viewer has dealt with what was entered.
func TestReconnect(t *testing.T) {
	b := newTab(t)
	b.signIn(annToken)
	node := shared.yard.Nodes[2]
	b.open(2, "queues")
	b.await(`document.querySelector("#live").innerText === "live" && document.querySelectorAll("link[data-peer]").length === 2`)
	b.run(chromedp.SendKeys(`form[action$=queue-add] input[name=name]`, "x"))
	b.tolerate(true)
	node.Kill()
	b.await(`document.querySelector("#lost").innerText.match(/Go on at .*What you have entered here is not sent/) && document.querySelector("form[action$=queue-add] input[name=name]").value === "x"`)
	b.run(chromedp.SendKeys(`form[action$=queue-add] input[name=name]`, kb.Backspace))
	b.await(`location.port !== "` + node.HTTP[strings.LastIndexByte(node.HTTP, ':')+1:] + `" && document.querySelector("#live")?.innerText === "live" && document.querySelector("h1").innerText === "Queues"`)
	b.tolerate(false)
}
