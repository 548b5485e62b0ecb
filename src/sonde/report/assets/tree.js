// The tree of sites: collapsible, filtered by a box, usable by keyboard as the ARIA pattern for trees says. A row is
// made when it is first seen, so that a tree of thousands of sites is there at once.

const MARKS = { problem: "●", warning: "▲", note: "◆" };
const OPEN_AT_MOST = 80; // with more sites, only the top of the tree is open at first
const FOUND_AT_MOST = 400; // with more hits of the filter, folders stay as they are

// The paths as nested nodes. A folder with nothing but another folder or site in it stands on the line of that one.
function nodesOf(paths) {
  const top = { children: new Map(), path: "" };
  for (const path of paths) {
    let node = top;
    let sofar = "";
    for (const part of path.split("/")) {
      sofar = sofar ? `${sofar}/${part}` : part;
      if (!node.children.has(part)) node.children.set(part, { name: part, path: sofar, children: new Map() });
      node = node.children.get(part);
    }
    node.site = true;
  }
  function shortened(node, up) {
    while (!node.site && node.children.size === 1) {
      const [child] = node.children.values();
      node = { ...child, name: `${node.name}/${child.name}` };
    }
    const whole = { name: node.name, path: node.path, site: Boolean(node.site), up, isOpen: false, isHidden: false };
    whole.children = Array.from(node.children.values(), (child) => shortened(child, whole));
    return whole;
  }
  return Array.from(top.children.values(), (child) => shortened(child, null));
}

//   amount(path): a short text beside a site;  glance(path): an element beside it, such as a small curve;
//   nothing: what is said if there is no path
function buildTree({ root, empty, filter, count, paths, amount, severity, select, glance, nothing = "The program has no sites." }) {
  const top = nodesOf(paths);
  const byPath = new Map();
  const each = (nodes, visit) => nodes.forEach((node) => (visit(node), each(node.children, visit)));
  each(top, (node) => byPath.set(node.path, node));
  const worstFirst = ["problem", "warning", "note"];

  // A folder shows what is serious inside it; notes stay where they are.
  function worst(node) {
    const inside = node.children.map(worst).filter((mark) => mark !== "note");
    const marks = [severity(node.path), ...inside];
    return worstFirst.find((mark) => marks.includes(mark));
  }

  function rowOf(node) {
    const mark = worst(node);
    return el(
      "div",
      { class: "row" },
      el("span", { class: "twist", "aria-hidden": "true" }, node.children.length ? (node.isOpen ? "▾" : "▸") : ""),
      mark ? el("span", { class: `mark ${mark}`, "aria-hidden": "true", title: mark }, MARKS[mark]) : null,
      el("span", { class: "name", title: node.path }, node.name),
      node.site && glance ? glance(node.path) : null,
      el("span", { class: "amount", "aria-hidden": "true" }, node.site ? amount(node.path) : ""),
    );
  }

  function itemOf(node, level) {
    const mark = worst(node);
    const li = el("li", {
      role: "treeitem",
      "aria-level": level,
      tabindex: "-1",
      "aria-label": `${node.path}${mark ? `, ${mark}` : ""}`,
      "aria-expanded": node.children.length ? "false" : null,
      "aria-selected": node.site ? "false" : null,
    });
    li.append(rowOf(node));
    li.hidden = node.isHidden;
    [li.node, node.li, node.level] = [node, li, level];
    return li;
  }

  function setOpen(node, isOpen) {
    if (!node.children.length) return;
    node.isOpen = isOpen;
    if (isOpen && node.li.childElementCount === 1)
      node.li.append(el("ul", { role: "group" }, ...node.children.map((child) => itemOf(child, node.level + 1))));
    node.li.setAttribute("aria-expanded", String(isOpen));
    node.li.querySelector(".twist").textContent = isOpen ? "▾" : "▸";
  }

  root.replaceChildren(...top.map((node) => itemOf(node, 1)));
  if (paths.length <= OPEN_AT_MOST) each(top, (node) => setOpen(node, true));
  if (top.length) top[0].li.tabIndex = 0;

  function reveal(node) {
    const above = [];
    for (let up = node.up; up; up = up.up) above.unshift(up);
    for (const up of above) setOpen(up, true);
  }

  function makeReachable(node) {
    for (const other of root.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    node.li.tabIndex = 0;
  }

  function focus(node) {
    makeReachable(node);
    node.li.focus({ preventScroll: true });
    node.li.firstChild.scrollIntoView({ block: "nearest" });
  }

  function visible(nodes = top, list = []) {
    for (const node of nodes) {
      if (node.isHidden) continue;
      list.push(node);
      if (node.isOpen) visible(node.children, list);
    }
    return list;
  }

  let chosen = null;
  function mark(path) {
    if (chosen) chosen.li.setAttribute("aria-selected", "false");
    chosen = byPath.get(path) || null;
    if (!chosen) return;
    reveal(chosen);
    chosen.li.setAttribute("aria-selected", "true");
    makeReachable(chosen);
    // Only inside the tree: the page itself must not move for it.
    const [row, box] = [chosen.li.firstChild.getBoundingClientRect(), root.getBoundingClientRect()];
    if (row.top < box.top) root.scrollTop -= box.top - row.top + 8;
    else if (row.bottom > box.bottom) root.scrollTop += row.bottom - box.bottom + 8;
  }

  function activate(node) {
    if (node.site) select(node.path);
    else setOpen(node, !node.isOpen);
  }

  root.onclick = (event) => {
    const li = event.target.closest('[role="treeitem"]');
    if (!li) return;
    makeReachable(li.node);
    if (event.target.classList.contains("twist") && li.node.children.length) setOpen(li.node, !li.node.isOpen);
    else activate(li.node);
  };

  root.onkeydown = (event) => {
    const li = event.target.closest('[role="treeitem"]');
    if (!li || event.ctrlKey || event.metaKey || event.altKey) return;
    const { node } = li;
    const list = visible();
    const at = list.indexOf(node);
    const moves = {
      ArrowDown: () => list[at + 1] && focus(list[at + 1]),
      ArrowUp: () => list[at - 1] && focus(list[at - 1]),
      Home: () => list[0] && focus(list[0]),
      End: () => list.length && focus(list[list.length - 1]),
      ArrowRight: () => {
        if (node.children.length && !node.isOpen) setOpen(node, true);
        else if (node.isOpen && list[at + 1]) focus(list[at + 1]);
      },
      ArrowLeft: () => {
        if (node.isOpen) setOpen(node, false);
        else if (node.up) focus(node.up);
      },
      Enter: () => activate(node),
      " ": () => activate(node),
    };
    if (moves[event.key]) {
      moves[event.key]();
      event.preventDefault();
    }
  };

  function applyFilter() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const isHit = (path) => words.every((word) => path.toLowerCase().includes(word));
    let hits = 0;
    const keep = (node) => {
      const below = node.children.map(keep).some(Boolean);
      const own = node.site && isHit(node.path);
      if (own) hits += 1;
      node.isHidden = !(own || below);
      node.hasHits = below;
      if (node.li) node.li.hidden = node.isHidden;
      return own || below;
    };
    top.forEach(keep);
    const opened = (nodes) => {
      for (const node of nodes) {
        if (!node.hasHits) continue;
        setOpen(node, true);
        opened(node.children);
      }
    };
    if (words.length && hits <= FOUND_AT_MOST) opened(top);
    count.textContent = words.length ? `${hits} of ${paths.length}` : `${paths.length}`;
    empty.hidden = hits > 0;
    empty.textContent = paths.length ? `No site has “${filter.value}” in its path.` : nothing;
  }

  filter.oninput = applyFilter;
  filter.onkeydown = (event) => {
    const list = visible();
    if (event.key === "ArrowDown" && list.length) {
      focus(list[0]);
      event.preventDefault();
    } else if (event.key === "Enter") {
      const first = list.find((node) => node.site);
      if (first) select(first.path);
    }
  };
  applyFilter();

  // Draws the rows again, after amounts and glances have changed.
  function refresh() {
    each(top, (node) => node.li && node.li.firstChild.replaceWith(rowOf(node)));
  }
  return { mark, refresh };
}
