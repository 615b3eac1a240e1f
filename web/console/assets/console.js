// The console in a browser: live updates, the viewer's time zone, keys, and what happens when
// the node is lost. Every page also works without this.
import { complete } from "./complete.js";
import { morph } from "./morph.js";
import { savedViews } from "./views.js";

const content = document.getElementById("content");
const live = document.getElementById("live");
const lost = document.getElementById("lost");
const started = Date.now();

// Times: in the viewer's zone, which they name, because texts of the yard have times in UTC; the
// title has the time in UTC.
const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" };
const zoned = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", ...clock });
const sameDay = new Intl.DateTimeFormat(undefined, clock);

function ago(ms) {
  const past = ms >= 0, s = Math.round(Math.abs(ms) / 1000);
  const text = s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} min` : s < 86400 ? `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min` : `${Math.floor(s / 86400)} d`;
  return past ? `${text} ago` : `in ${text}`;
}

function localize(root) {
  const now = new Date();
  for (const t of root.querySelectorAll("time[datetime]")) {
    const at = new Date(t.dateTime);
    const text = "ago" in t.dataset ? ago(now - at) : at.toDateString() === now.toDateString() ? sameDay.format(at) : zoned.format(at);
    if (t.textContent !== text) t.textContent = text;
  }
}

// A page that an act has led to by its form has the address of that act until here.
if (document.body.dataset.address) history.replaceState(null, "", document.body.dataset.address);

// Live updates.
let source, failures = 0;

function showLive(on) {
  live.hidden = false;
  live.classList.toggle("off", !on);
  live.textContent = on ? "live" : "not live";
}

function connect() {
  if (source || document.hidden) return;
  source = new EventSource(location.href);
  source.addEventListener("main", (e) => {
    failures = 0;
    showLive(true);
    lost.hidden = true;
    const next = document.createElement("div");
    next.id = "content";
    next.append(document.createRange().createContextualFragment(e.data));
    localize(next);
    morph(content, next);
    mark();
  });
  source.addEventListener("error", () => {
    disconnect();
    showLive(false);
    failures++;
    if (failures > 1) findPeer();
    setTimeout(connect, Math.min(500 * 2 ** failures, 10000));
  });
}

function disconnect() {
  source?.close();
  source = undefined;
}

// findPeer asks the other members whether they answer. A member with the same host name has
// the session, too: the page goes on there. Otherwise, or if that would lose what the viewer has
// entered, it offers a link.
async function findPeer() {
  const here = await answers(location.origin);
  if (here) {
    const reply = await fetch(location.href, { method: "HEAD", redirect: "manual" }).catch(() => undefined);
    if (reply?.type === "opaqueredirect") location.reload(); // the session has ended
    return;
  }
  for (const link of document.querySelectorAll("link[data-peer]")) {
    if (!await answers(link.href.replace(/\/$/, ""))) continue;
    const to = new URL(location.pathname + location.search, link.href);
    const same = to.hostname === location.hostname, kept = entered();
    if (same && !kept) {
      location.assign(to);
      return;
    }
    lost.replaceChildren("This node does not answer. ", Object.assign(document.createElement("a"), { href: to, textContent: `Go on at ${link.dataset.peer}` }), same ? "" : ", where you may have to sign in again",
      kept ? ". What you have entered here is not sent, and not taken along: copy it first." : ".");
    lost.hidden = false;
    return;
  }
  lost.textContent = "This node does not answer, and no other member that this page knows does. The page shows the last that it got, and tries again.";
  lost.hidden = false;
}

// entered reports whether the viewer has entered something that was not sent.
function entered() {
  const fields = document.querySelectorAll("input:not([type=hidden], [type=checkbox]), textarea");
  return !!content.querySelector("[data-dirty]") || [...fields].some((f) => f.value !== f.defaultValue);
}

async function answers(origin) {
  try {
    await fetch(origin + "/healthz", { mode: "no-cors", cache: "no-store", signal: AbortSignal.timeout(1500) });
    return true;
  } catch {
    return false;
  }
}

// Rows.
let at;

function rows() {
  return [...content.querySelectorAll("tr[data-open], tr[data-row]")];
}

function mark() {
  for (const row of content.querySelectorAll("tr.at")) if (row.dataset.row !== at) row.classList.remove("at");
  const row = at && rows().find((r) => r.dataset.row === at);
  row?.classList.add("at");
  const checked = content.querySelectorAll("tbody input[type=checkbox]:checked").length;
  const shown = content.querySelector("[data-selected]");
  if (shown) shown.textContent = checked ? `${checked} selected` : "";
  return row;
}

function move(by) {
  const all = rows();
  if (!all.length) return;
  const i = all.findIndex((r) => r.dataset.row === at);
  at = all[Math.max(0, Math.min(all.length - 1, i < 0 ? (by > 0 ? 0 : all.length - 1) : i + by))].dataset.row;
  mark()?.scrollIntoView({ block: "nearest" });
}

content.addEventListener("change", (e) => {
  if (e.target.matches("[data-all]")) {
    for (const box of content.querySelectorAll("tbody input[type=checkbox]")) box.checked = e.target.checked;
  }
  mark();
});

// Forms that are being edited are not replaced by updates.
content.addEventListener("input", (e) => e.target.closest("[data-edit]")?.setAttribute("data-dirty", ""));

// Theme.
function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `yard_theme=${root.dataset.theme}; path=/console/; max-age=31536000; samesite=strict`;
}

// Keys.
const help = document.getElementById("help");
let prefix = 0;

function typing(e) {
  return e.target.closest("input:not([type=checkbox]), textarea, select") || e.ctrlKey || e.metaKey || e.altKey;
}

document.addEventListener("keydown", (e) => {
  if (e.key === "Escape" && e.target.matches("[data-search]")) e.target.blur();
  if (typing(e) || help.open) return;
  const after = prefix && Date.now() - prefix < 1500;
  prefix = 0;
  if (after) {
    const link = document.querySelector(`.side a[data-key="${CSS.escape(e.key)}"]`);
    if (link) return link.click();
  }
  const row = at && rows().find((r) => r.dataset.row === at);
  const act = {
    "/": () => document.querySelector("[data-search]")?.select(),
    "?": () => document.querySelector(".side") && help.showModal(),
    j: () => move(1),
    k: () => move(-1),
    g: () => { prefix = Date.now(); },
    t: toggleTheme,
    x: () => row?.querySelector("input[type=checkbox]")?.click(),
    Enter: () => !e.target.closest("a, button, summary") && row?.dataset.open && location.assign(row.dataset.open),
  }[e.key];
  if (!act) return;
  if (e.key !== "Enter") e.preventDefault();
  act();
});

for (const [selector, act] of [["[data-theme-toggle]", toggleTheme], ["[data-help]", () => help.showModal()]]) {
  const button = document.querySelector(selector);
  if (button) {
    button.hidden = false;
    button.addEventListener("click", act);
  }
}

// The slider of the past: it says which time it is at, and goes there when it is released.
const slider = document.querySelector("[data-slider]");
if (slider) {
  const said = slider.querySelector("output");
  const say = () => { said.textContent = `${slider.ago.value} min, ${zoned.format(new Date(Date.now() - slider.ago.value * 60000))}`; };
  slider.ago.addEventListener("input", say);
  slider.ago.addEventListener("change", () => slider.submit());
  say();
}

const search = document.querySelector("[data-search]");
if (search) complete(search);
const views = document.getElementById("views");
if (views) savedViews(views);

localize(document);
setInterval(() => localize(document), 1000);
if (document.body.hasAttribute("data-live")) {
  connect();
  document.addEventListener("visibilitychange", () => document.hidden ? disconnect() : connect());
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", (e) => e.persisted && connect());
}
document.documentElement.dataset.ready = String(Date.now() - started);
