// What the explained logit comes from, as a graph: edges between components, layer by layer; or between tokens, features
// and logits, position by position. A slider prunes it and says how faithful the rest is. Nodes are moved, pinned and
// grouped by hand; all of that is in the address.

import { el, num, plural, show, svg, tip } from "/static/shared.js";
import { card, saveJson } from "/static/exporting.js";
import { current, explained, runOf, update } from "/static/state.js";
import { visible } from "/static/text.js";

const STEP = { components: { x: 78, y: 128, stagger: 26 }, features: { x: 120, y: 64, stagger: 0 } };
const EDGE = { left: 70, top: 30 };
const KINDS = { components: "components", features: "features of transcoders" };
const NODE = { w: 74, h: 22 };
const DRAG = 4; // pixels from which a click is a drag

export async function graphView(context) {
  const state = current();
  const kinds = context.card.graphs;
  let choices = { kind: kinds[0], share: 0.4, pinned: [], groups: {}, places: {}, ...state.graph };
  if (!kinds.includes(choices.kind)) choices.kind = kinds[0];
  const picked = new Set(); // nodes that are about to be grouped
  let answer = null;
  let asked = 0; // the number of the latest question: older answers are not drawn
  const told = el("output", { "aria-live": "polite" });
  const holder = el("div", { class: "stack" });
  const kind = el("select", { "aria-label": "Graph of" }, ...kinds.map((name) => el("option", { value: name }, KINDS[name])));
  kind.value = choices.kind;
  const slider = el("input", { type: "range", min: 0.05, max: 1, step: 0.05, value: choices.share, id: "share", "aria-label": "Share of all scores that is kept" });
  const other = el("input", { type: "text", class: "other", value: state.other, placeholder: "another prompt (zeros, if empty)", "aria-label": "The other prompt" });

  const put = (some) => {
    choices = { ...choices, ...some };
    update({ graph: choices }, { replace: true });
  };
  const question = () => ({ ...runOf(), kind: choices.kind, other: choices.kind === "components" ? other.value : "", explained: explained(), share: choices.share, pinned: choices.pinned });

  async function load() {
    const number = ++asked;
    told.textContent = "Measuring …";
    other.hidden = choices.kind !== "components";
    try {
      const latest = await context.connection.ask("graph", question());
      if (number !== asked) return;
      answer = latest;
    } catch (error) {
      if (number === asked) told.textContent = error.message;
      return;
    }
    told.textContent =
      choices.kind === "components"
        ? `${plural(answer.kept, "edge")} of ${show(answer.of)}: faithfulness ${show(answer.faithfulness)} (1 is the whole model, 0 the other run)`
        : `${plural(answer.kept, "feature")} of ${show(answer.of)}: ${show(answer.faithfulness)} of the logit is followed to tokens; errors and what was cut break off the rest`;
    draw();
  }

  function draw() {
    const whole = grouped(answer, choices.groups);
    const left = holder.querySelector(".scroll-x")?.scrollLeft;
    const act = { move: (id, place) => (put({ places: { ...choices.places, [id]: place } }), draw()), open, pick };
    holder.replaceChildren(
      card(`Graph of ${KINDS[choices.kind]}`, [el("div", { class: "scroll-x", tabindex: "0" }, drawing(whole, choices, picked, act))], {
        name: "graph",
        code: () => context.python(answer.code),
        note: `Orange adds to what is explained, blue takes away; wider is more. Drag a node to move it; Enter or a click shows it; P pins it; a click with Shift, or G, picks it for a group.${answer.edges.length < answer.kept && choices.kind === "components" ? ` The strongest ${answer.edges.length} edges are drawn.` : ""}`,
        more: [el("button", { class: "tool", type: "button", on: { click: async () => saveJson(await context.connection.ask("graph_file", { ...question(), groups: choices.groups }), "graph.json") } }, "JSON")],
      }),
      tools(),
      edgeTable(whole),
    );
    const box = holder.querySelector(".scroll-x");
    box.scrollLeft = left ?? box.scrollWidth; // at first, the end: what is explained
  }

  function open(node) {
    if (node.members) return;
    if (node.kind === "feature") update({ view: "features", path: node.path.replace(/\/features$/, ""), feature: node.feature });
    else if (context.sites.some((site) => site.path === node.path)) update({ view: "site", path: node.path });
  }

  function pick(id, how) {
    if (how === "pin") {
      put({ pinned: choices.pinned.includes(id) ? choices.pinned.filter((one) => one !== id) : [...choices.pinned, id] });
      load();
    } else {
      if (!picked.delete(id)) picked.add(id);
      draw();
    }
  }

  // What can be done with the nodes that were picked, and with groups.
  function tools() {
    const name = el("input", { type: "text", class: "other", placeholder: "name of the group", "aria-label": "Name of the group" });
    const button = (text, act, off = false) => el("button", { class: "button", type: "button", disabled: off, on: { click: act } }, text);
    const pinPicked = () => {
      put({ pinned: [...new Set([...choices.pinned, ...picked])] });
      picked.clear();
      load();
    };
    const group = () => {
      const members = [...picked].flatMap((id) => choices.groups[id] ?? [id]);
      const others = Object.entries(choices.groups).filter(([id]) => !picked.has(id));
      picked.clear();
      const taken = new Set([...answer.nodes.map((node) => node.id), ...others.map(([id]) => id)]);
      let title = name.value.trim() || "group 1";
      for (let number = 2; taken.has(title); number++) title = `${name.value.trim() || "group"} ${number}`;
      put({ groups: { ...Object.fromEntries(others), [title]: members } });
      draw();
    };
    const line = el(
      "div",
      { class: "card form" },
      el("span", {}, picked.size ? `Picked: ${[...picked].join(", ")}` : "Nothing is picked."),
      button("Pin", pinPicked, !picked.size),
      name,
      button("Group", group, picked.size < 2),
      button("Put nodes back", () => (put({ places: {} }), draw())),
    );
    for (const [group, members] of Object.entries(choices.groups))
      line.append(chip(`${group} (${members.length})`, `Take ${group} apart`, () => {
        const { [group]: _, ...rest } = choices.groups;
        put({ groups: rest });
        draw();
      }));
    for (const id of choices.pinned) line.append(chip(`pinned: ${id}`, `Unpin ${id}`, () => pick(id, "pin")));
    return line;
  }

  slider.addEventListener("change", () => (put({ share: Number(slider.value) }), load()));
  kind.addEventListener("change", () => (put({ kind: kind.value, pinned: [], groups: {}, places: {} }), load()));
  other.addEventListener("change", () => (update({ other: other.value }, { replace: true }), load()));
  load();
  return el(
    "div",
    { class: "stack" },
    el("div", { class: "section-head" }, el("h2", {}, "Graph"), kinds.length > 1 ? el("label", { class: "inline" }, "Of ", kind) : null),
    el("p", { class: "quiet" }, context.explainedText()),
    el("div", { class: "card form" }, el("label", { class: "inline" }, "Kept share of all scores ", slider), other, told),
    holder,
  );
}

function chip(text, label, act) {
  return el("span", { class: "chip" }, text, el("button", { class: "tool", type: "button", "aria-label": label, on: { click: act } }, "×"));
}

// The graph with each group as one node; between groups, the sums of the edges of their nodes.
function grouped({ nodes, edges }, groups) {
  const groupOf = new Map(Object.entries(groups).flatMap(([group, members]) => members.map((id) => [id, group])));
  const named = (id) => groupOf.get(id) ?? id;
  const shown = new Map();
  for (const node of nodes) {
    const id = named(node.id);
    if (id === node.id) shown.set(id, node);
    else if (shown.has(id)) shown.get(id).members.push(node.id);
    else shown.set(id, { ...node, id, name: id, kind: "group", members: [node.id] });
  }
  const sums = new Map();
  for (const [source, target, score] of edges) {
    const [a, b] = [named(source), named(target)];
    const key = JSON.stringify([a, b]);
    if (a !== b) sums.set(key, (sums.get(key) ?? 0) + num(score));
  }
  const joined = [...sums].map(([key, score]) => [...JSON.parse(key), score]).sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]));
  return { nodes: [...shown.values()], edges: joined };
}

// Where nodes stand: columns from left to right by layer or position; lanes from top to bottom by kind, or upward by layer.
function placed({ nodes }, { kind, places }) {
  const step = STEP[kind];
  const columns = [...new Set(nodes.map((node) => node.column))].sort((a, b) => a - b);
  const lanes = [...new Set(nodes.map((node) => node.lane))].sort((a, b) => (kind === "features" ? b - a : a - b));
  const filled = new Map(); // how many nodes a cell holds: features of one layer and position stand beside each other
  const widths = columns.map((column) => Math.max(1, ...lanes.map((lane) => nodes.filter((node) => node.column === column && node.lane === lane).length)));
  const wide = kind === "features" ? 82 : 0;
  const lefts = widths.map((_, i) => EDGE.left + widths.slice(0, i).reduce((sum, n) => sum + step.x + (n - 1) * wide, 0));
  const shown = new Map();
  for (const node of nodes) {
    const cell = `${node.column} ${node.lane}`;
    const before = filled.get(cell) ?? 0;
    filled.set(cell, before + 1);
    const column = columns.indexOf(node.column);
    const lane = kind === "features" ? lanes.indexOf(node.lane) : node.lane;
    const usual = { x: lefts[column] + before * wide, y: EDGE.top + lane * step.y + (column % 3) * step.stagger };
    shown.set(node.id, { ...node, ...(places[node.id] ?? usual) });
  }
  return shown;
}

function drawing(whole, choices, picked, { move, open, pick }) {
  const nodes = placed(whole, choices);
  const all = [...nodes.values()];
  const width = Math.max(320, ...all.map((node) => node.x)) + EDGE.left;
  const height = Math.max(120, ...all.map((node) => node.y)) + EDGE.top + NODE.h;
  const root = svg("svg", { class: "chart graph", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${plural(whole.edges.length, "edge")} between ${plural(nodes.size, "node")}` });
  root.style.width = `${width}px`;
  root.style.maxWidth = "none";
  const most = Math.max(...whole.edges.map(([, , score]) => Math.abs(num(score))), 1e-12);
  for (const [source, target, score] of whole.edges) {
    const [a, b] = [nodes.get(source), nodes.get(target)];
    if (!a || !b) continue;
    const size = Math.abs(num(score)) / most;
    const bend = Math.abs(b.x - a.x) > NODE.w ? [(b.x - a.x) / 2, 0] : [0, (b.y - a.y) / 2];
    const line = svg("path", {
      class: "edge",
      d: `M${a.x} ${a.y}C${a.x + bend[0]} ${a.y + bend[1]} ${b.x - bend[0]} ${b.y - bend[1]} ${b.x} ${b.y}`,
      stroke: num(score) < 0 ? "var(--below)" : "var(--above)",
      "stroke-width": Math.max(0.7, 6 * size),
      fill: "none",
      opacity: 0.35 + 0.6 * size,
    });
    line.addEventListener("pointermove", (event) => tip.show(event, `${source} → ${target}\n${show(score)}`));
    line.addEventListener("pointerleave", tip.hide);
    root.append(line);
  }
  for (const node of all) root.append(drawNode(node, { root, width, choices, picked, move, open, pick }));
  return root;
}

function drawNode(node, { root, width, choices, picked, move, open, pick }) {
  const isPinned = choices.pinned.includes(node.id);
  const marks = [isPinned ? "pinned" : "", picked.has(node.id) ? "picked" : "", node.members ? `a group of ${node.members.length}` : ""].filter(Boolean);
  const text = visible(node.name);
  const group = svg(
    "g",
    { class: `node ${node.kind} ${isPinned ? "pinned" : ""} ${picked.has(node.id) ? "picked" : ""}`, tabindex: "0", role: "button", "data-id": node.id, "aria-label": [node.id, ...marks].join(", ") },
    svg("rect", { x: node.x - NODE.w / 2, y: node.y - NODE.h / 2, width: NODE.w, height: NODE.h, rx: node.kind === "token" || node.kind === "logit" ? 3 : 9 }),
    svg("text", { x: node.x, y: node.y + 4, "text-anchor": "middle" }, text.length > 12 ? `${text.slice(0, 11)}…` : text),
  );
  group.addEventListener("pointermove", (event) => tip.show(event, [node.id, node.path, node.value === null || node.value === undefined ? "" : show(node.value), ...(node.members ?? []), ...marks].filter(Boolean).join("\n")));
  group.addEventListener("pointerleave", tip.hide);
  group.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [-12, 0], ArrowRight: [12, 0], ArrowUp: [0, -12], ArrowDown: [0, 12] }[event.key];
    const act = { Enter: () => open(node), p: () => pick(node.id, "pin"), g: () => pick(node.id, "group") }[event.key];
    if (by) move(node.id, { x: node.x + by[0], y: node.y + by[1] });
    else act?.();
    if (!by && !act) return;
    event.preventDefault();
    // Everything was drawn anew: the same node keeps the focus.
    requestAnimationFrame(() => [...document.querySelectorAll(".node")].find((one) => one.dataset.id === node.id)?.focus());
  });
  group.addEventListener("pointerdown", (event) => {
    const start = { x: event.clientX, y: event.clientY };
    const scale = width / root.getBoundingClientRect().width;
    group.setPointerCapture(event.pointerId);
    group.onpointermove = (at) => group.setAttribute("transform", `translate(${(at.clientX - start.x) * scale} ${(at.clientY - start.y) * scale})`);
    group.onpointerup = (end) => {
      group.onpointermove = group.onpointerup = null;
      const by = { x: (end.clientX - start.x) * scale, y: (end.clientY - start.y) * scale };
      if (Math.hypot(by.x, by.y) >= DRAG) move(node.id, { x: node.x + by.x, y: node.y + by.y });
      else if (end.shiftKey) pick(node.id, "group");
      else open(node);
    };
  });
  return group;
}

const LISTED = 20;

function edgeTable({ edges }) {
  const row = ([source, target, score]) => el("tr", {}, el("td", { class: "mono" }, source), el("td", { class: "mono" }, target), el("td", {}, show(score)));
  const head = el("thead", {}, el("tr", {}, ...["from", "to", "score"].map((name) => el("th", { scope: "col" }, name))));
  return card("The strongest edges", el("div", { class: "scroll", tabindex: "0" }, el("table", {}, head, el("tbody", {}, ...edges.slice(0, LISTED).map(row)))), { name: "edges" });
}
