// The tree of sites: collapsible, filtered by a box, usable by keyboard as the ARIA pattern for trees says.

const MARKS = { problem: "●", warning: "▲", note: "◆" };
const OPEN_AT_MOST = 80; // with more sites, only the top of the tree is open at first

function buildTree({ root, empty, filter, count, paths, amount, severity, select }) {
  const top = { children: new Map(), path: "" };
  for (const path of paths) {
    let node = top;
    let sofar = "";
    for (const part of path.split("/")) {
      sofar = sofar ? `${sofar}/${part}` : part;
      if (!node.children.has(part))
        node.children.set(part, { name: part, path: sofar, children: new Map(), site: false });
      node = node.children.get(part);
    }
    node.site = true;
  }
  // A folder with nothing but another folder or site in it stands on the line of that one.
  function shortened(node) {
    while (!node.site && node.children.size === 1) {
      const [child] = node.children.values();
      node = { ...child, name: `${node.name}/${child.name}` };
    }
    node.children = new Map(Array.from(node.children.values(), (child) => [child.path, shortened(child)]));
    return node;
  }
  top.children = new Map(Array.from(top.children.values(), (child) => [child.path, shortened(child)]));
  const items = new Map(); // of sites and folders, by path
  const open = paths.length <= OPEN_AT_MOST;

  function worst(node) {
    // A folder shows what is serious inside it; notes stay where they are.
    const inside = Array.from(node.children.values(), worst).filter((s) => s !== "note");
    const mine = [severity(node.path), ...inside];
    return ["problem", "warning", "note"].find((s) => mine.includes(s));
  }

  function item(node, level) {
    const folder = node.children.size > 0;
    const mark = worst(node);
    const row = el(
      "div",
      { class: "row" },
      el("span", { class: "twist", "aria-hidden": "true" }, folder ? (open ? "▾" : "▸") : ""),
      mark ? el("span", { class: `mark ${mark}`, "aria-hidden": "true", title: mark }, MARKS[mark]) : null,
      el("span", { class: "name", title: node.path }, node.name),
      el("span", { class: "amount", "aria-hidden": "true" }, node.site ? amount(node.path) : ""),
    );
    const li = el("li", {
      role: "treeitem",
      "aria-level": level,
      tabindex: "-1",
      "aria-label": `${node.path}${mark ? `, ${mark}` : ""}`,
      "aria-expanded": folder ? String(open) : null,
      "aria-selected": node.site ? "false" : null,
    });
    li.append(row);
    li.node = node;
    items.set(node.path, li);
    if (folder)
      li.append(el("ul", { role: "group" }, ...Array.from(node.children.values(), (child) => item(child, level + 1))));
    return li;
  }

  root.append(...Array.from(top.children.values(), (node) => item(node, 1)));
  const all = Array.from(items.values());
  if (all.length) all[0].tabIndex = 0;

  function setOpen(li, isOpen) {
    if (!li.hasAttribute("aria-expanded")) return;
    li.setAttribute("aria-expanded", String(isOpen));
    li.firstChild.firstChild.textContent = isOpen ? "▾" : "▸";
  }

  function reveal(li) {
    for (let up = li.parentElement; up && up !== root; up = up.parentElement) if (up.node) setOpen(up, true);
  }

  function focus(li) {
    for (const other of root.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    li.tabIndex = 0;
    li.focus({ preventScroll: true });
    li.firstChild.scrollIntoView({ block: "nearest" });
  }

  function visible() {
    return all.filter((li) => li.offsetParent !== null && !li.hidden);
  }

  let chosen = null;
  function mark(path) {
    if (chosen) chosen.setAttribute("aria-selected", "false");
    chosen = items.get(path) || null;
    if (!chosen) return;
    chosen.setAttribute("aria-selected", "true");
    reveal(chosen);
    for (const other of root.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    chosen.tabIndex = 0;
    // Only inside the tree: the page itself must not move for it.
    const [box, row] = [root.getBoundingClientRect(), chosen.firstChild.getBoundingClientRect()];
    if (row.top < box.top) root.scrollTop -= box.top - row.top + 20;
    if (row.bottom > box.bottom) root.scrollTop += row.bottom - box.bottom + 20;
  }

  function activate(li) {
    if (li.node.site) select(li.node.path);
    else setOpen(li, li.getAttribute("aria-expanded") !== "true");
  }

  root.addEventListener("click", (event) => {
    const li = event.target.closest('[role="treeitem"]');
    if (!li) return;
    if (event.target.classList.contains("twist") && li.hasAttribute("aria-expanded"))
      setOpen(li, li.getAttribute("aria-expanded") !== "true");
    else activate(li);
  });

  root.addEventListener("keydown", (event) => {
    const li = event.target.closest('[role="treeitem"]');
    if (!li || event.ctrlKey || event.metaKey || event.altKey) return;
    const list = visible();
    const at = list.indexOf(li);
    const isOpen = li.getAttribute("aria-expanded") === "true";
    const moves = {
      ArrowDown: () => list[at + 1] && focus(list[at + 1]),
      ArrowUp: () => list[at - 1] && focus(list[at - 1]),
      Home: () => list[0] && focus(list[0]),
      End: () => list.length && focus(list[list.length - 1]),
      ArrowRight: () => {
        if (li.hasAttribute("aria-expanded") && !isOpen) setOpen(li, true);
        else if (isOpen && list[at + 1]) focus(list[at + 1]);
      },
      ArrowLeft: () => {
        const up = li.parentElement.closest('[role="treeitem"]');
        if (isOpen) setOpen(li, false);
        else if (up) focus(up);
      },
      Enter: () => activate(li),
      " ": () => activate(li),
    };
    if (moves[event.key]) {
      moves[event.key]();
      event.preventDefault();
    }
  });

  function applyFilter() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hit = (path) => words.every((word) => path.toLowerCase().includes(word));
    let found = 0;
    const keep = (node) => {
      const children = Array.from(node.children.values(), keep).some(Boolean);
      const me = node.site && hit(node.path);
      if (me) found += 1;
      const li = items.get(node.path);
      li.hidden = !(me || children);
      if (words.length && children) setOpen(li, true);
      return me || children;
    };
    for (const node of top.children.values()) keep(node);
    count.textContent = words.length ? `${found} of ${paths.length}` : `${paths.length}`;
    empty.hidden = found > 0;
    empty.textContent = paths.length ? `No site has “${filter.value}” in its path.` : "The program has no sites.";
  }

  filter.addEventListener("input", applyFilter);
  filter.addEventListener("keydown", (event) => {
    const list = visible();
    if (event.key === "ArrowDown" && list.length) {
      focus(list[0]);
      event.preventDefault();
    } else if (event.key === "Enter") {
      const first = list.find((li) => li.node.site);
      if (first) select(first.node.path);
    }
  });
  applyFilter();
  return { mark };
}
