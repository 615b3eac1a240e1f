// Completion of a search field: a combobox with a list of proposals, which the server makes of
// the text before the cursor.
const encoder = new TextEncoder(), decoder = new TextDecoder();

// bytes returns how many bytes of UTF-8 the first characters of a text are, characters the
// number of characters in the first bytes.
const bytes = (text, characters) => encoder.encode(text.slice(0, characters)).length;
const characters = (text, bytes) => decoder.decode(encoder.encode(text).slice(0, bytes)).length;

export function complete(input) {
  const list = Object.assign(document.createElement("ul"), { id: "proposals", className: "proposals", hidden: true });
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Proposals");
  input.after(list);
  for (const [name, value] of [["role", "combobox"], ["aria-autocomplete", "list"], ["aria-controls", "proposals"], ["aria-expanded", "false"]]) input.setAttribute(name, value);

  let completion, chosen = -1, waiting, asked;

  function close() {
    clearTimeout(waiting);
    asked?.abort();
    list.hidden = true;
    chosen = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function choose(i) {
    chosen = i;
    [...list.children].forEach((item, k) => item.setAttribute("aria-selected", String(k === i)));
    if (i < 0) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", list.children[i].id);
    list.children[i].scrollIntoView({ block: "nearest" });
  }

  function show() {
    list.replaceChildren(...completion.proposals.map(({ text, help }, i) => {
      const item = Object.assign(document.createElement("li"), { id: `proposal-${i}` });
      item.setAttribute("role", "option");
      item.append(Object.assign(document.createElement("code"), { textContent: text }), " ", Object.assign(document.createElement("span"), { className: "dim", textContent: help ?? "" }));
      item.addEventListener("mousedown", (e) => { // before the field loses the focus
        e.preventDefault();
        accept(i);
      });
      return item;
    }));
    list.hidden = !completion.proposals.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
    choose(-1);
  }

  function accept(i) {
    const text = completion.proposals[i].text, value = input.value;
    const from = characters(value, completion.offset), to = characters(value, completion.offset + completion.length);
    const open = text.endsWith(":") || text.endsWith("."); // a value follows
    input.value = value.slice(0, from) + text + (open ? "" : " ") + value.slice(to).trimStart();
    const at = from + text.length + (open ? 0 : 1);
    input.setSelectionRange(at, at);
    ask();
  }

  // stale reports whether the proposals are for another text.
  const stale = () => list.hidden || completion.text !== input.value;

  async function ask() {
    clearTimeout(waiting);
    asked?.abort();
    asked = new AbortController();
    const text = input.value;
    try {
      const reply = await fetch(`/console/complete?${new URLSearchParams({ q: text, cursor: bytes(text, input.selectionStart) })}`, { signal: asked.signal });
      if (!reply.ok) return;
      completion = { text, ...await reply.json() };
      if (input.value === text && document.activeElement === input) show();
    } catch { /* the next key asks again */ }
  }

  input.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(ask, 120);
  });
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (e) => {
    const n = stale() ? 0 : list.children.length;
    if ((e.key === "ArrowDown" || e.key === "ArrowUp") && !n) {
      ask().then(() => !stale() && choose(0));
    } else if (e.key === "ArrowDown") {
      choose(chosen + 1 < n ? chosen + 1 : 0);
    } else if (e.key === "ArrowUp") {
      choose(chosen > 0 ? chosen - 1 : n - 1);
    } else if (n && chosen >= 0 && (e.key === "Enter" || e.key === "Tab")) {
      accept(chosen);
    } else if (!list.hidden && e.key === "Escape") {
      close();
      e.stopPropagation();
    } else {
      return;
    }
    e.preventDefault();
  });
}
