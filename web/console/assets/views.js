// Views that the viewer has saved: names of searches, kept in this browser, as links.
const store = "yard_views";

function load() {
  try {
    const views = JSON.parse(localStorage.getItem(store) ?? "[]");
    return Array.isArray(views) ? views.filter((v) => typeof v?.name === "string" && typeof v?.query === "string") : [];
  } catch {
    return [];
  }
}

export function savedViews(root) {
  const query = new URLSearchParams(location.search).get("q") ?? "";
  const save = (views) => {
    localStorage.setItem(store, JSON.stringify(views));
    show();
  };

  function show() {
    const views = load();
    root.replaceChildren(...views.flatMap((view) => {
      const link = Object.assign(document.createElement("a"), { className: "tag", href: `/console/jobs?${new URLSearchParams({ q: view.query })}`, textContent: view.name });
      if (view.query === query) link.setAttribute("aria-current", "true");
      const remove = Object.assign(document.createElement("button"), { type: "button", className: "quiet", textContent: "×", ariaLabel: `Forget the view ${view.name}` });
      remove.addEventListener("click", () => save(views.filter((v) => v.name !== view.name)));
      return [link, remove, " "];
    }));
    if (!query || views.some((v) => v.query === query)) return;
    const form = Object.assign(document.createElement("form"), { className: "view" });
    const name = Object.assign(document.createElement("input"), { required: true, maxLength: 60, placeholder: "name of this view", ariaLabel: "Name of this view" });
    form.append(name, Object.assign(document.createElement("button"), { textContent: "Save view" }));
    form.addEventListener("submit", (e) => {
      e.preventDefault();
      save([...views.filter((v) => v.name !== name.value), { name: name.value, query }]);
    });
    root.append(form);
  }
  show();
}
