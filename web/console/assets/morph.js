// morph changes the children of one element to those of another, and keeps what is the same:
// the focus, selections, what is open and what is being edited.

// key returns what identifies an element among its siblings, undefined if nothing does.
function key(node) {
  return node.nodeType === 1 ? node.id || node.dataset.row || undefined : undefined;
}

// same reports whether a node can become another by changes of its attributes and children.
function same(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);
}

export function morph(from, to) {
  const keyed = new Map();
  for (const child of from.children) if (key(child)) keyed.set(key(child), child);
  let at = from.firstChild;
  for (const next of [...to.childNodes]) {
    const known = key(next) && keyed.get(key(next));
    if (known && known !== at && same(known, next)) {
      from.insertBefore(known, at);
      update(known, next);
    } else if (at && same(at, next)) {
      const current = at;
      at = at.nextSibling;
      update(current, next);
    } else {
      from.insertBefore(next, at);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

// update changes one node to another of the same kind.
function update(from, to) {
  if (from.nodeType !== 1) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  if (from.isEqualNode(to) || from.hasAttribute("data-dirty") || from.hasAttribute("data-own")) return; // what scripts own, and what is being edited, stays
  const open = from.nodeName === "DETAILS" && from.open;
  for (const { name } of [...from.attributes]) if (!to.hasAttribute(name) && name !== "class") from.removeAttribute(name);
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  if (from.nodeName === "DETAILS") from.open = open;
  if (from.nodeName === "INPUT" || from.nodeName === "TEXTAREA" || from.nodeName === "SELECT") return; // what the viewer has typed stays
  morph(from, to);
}
