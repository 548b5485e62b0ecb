// The graph of a model: components from left to right by layer, and the strongest edges between them. A slider prunes
// it and tells how faithful what is left is; nodes can be moved by hand.

import { el, num, plural, show, svg, tip } from "/static/shared.js";
import { card, saveBlob } from "/static/exporting.js";
import { current, explained, runOf, update } from "/static/state.js";

const ROW = { h: 30, w: 190, left: 70, top: 26 };
let moved = new Map(); // where nodes were put by hand, by name

export async function edgesView(context) {
  const state = current();
  const { subject, prompt } = runOf();
  const slider = el("input", { type: "range", min: 0.05, max: 0.95, step: 0.05, value: 0.4, id: "share" });
  const told = el("output", { "aria-live": "polite" });
  const other = el("input", { type: "text", class: "other", value: state.other, placeholder: "another prompt (zeros, if empty)", "aria-label": "The other prompt" });
  const holder = el("div", { class: "stack" });
  let answer = null;
  const load = async () => {
    told.textContent = "Measuring …";
    try {
      answer = await context.connection.ask("edges", { subject, prompt, other: other.value, explained: explained(), share: Number(slider.value) });
    } catch (error) {
      told.textContent = error.message;
      return;
    }
    told.textContent = `${plural(answer.kept, "edge")} of ${show(answer.of)}: faithfulness ${show(answer.faithfulness)} (1 is the whole model, 0 the other run)`;
    draw();
  };
  const draw = () => {
    const edges = answer.edges.slice(0, answer.kept);
    const exported = () => saveBlob(new Blob([JSON.stringify(asGraph(edges, context), null, 1)], { type: "application/json" }), "graph.json");
    holder.replaceChildren(
      card("Which component feeds which", [el("div", { class: "scroll-x" }, drawing(edges, draw, context))], {
        name: "graph",
        code: `senders, receivers, _ = f.circuit_sites()\nedges = sonde.tools.attribute_edges(f, senders, receivers, metric=metric, baseline=${other.value ? "other_args" : "0"})(*args)\nedges.prune(${slider.value}).measured()`,
        note: "An edge is what the metric would lose without it: orange adds, blue takes away. Drag a node to move it; a click shows its site.",
      }),
      el("div", { class: "buttons" }, el("button", { class: "button", type: "button", on: { click: exported } }, "Save as JSON"), el("button", { class: "button", type: "button", on: { click: () => ((moved = new Map()), draw()) } }, "Put nodes back")),
    );
  };
  slider.addEventListener("change", load);
  other.addEventListener("change", () => {
    update({ other: other.value }, { replace: true });
    load();
  });
  load();
  return el(
    "div",
    { class: "stack" },
    el("h2", {}, "Graph"),
    el("p", { class: "quiet" }, context.explainedText()),
    el("div", { class: "card form" }, el("label", { class: "inline" }, "Share of all scores ", slider), other, told),
    holder,
  );
}

// A component is one node, whether it sends or receives: blocks/3/mlp/out and blocks/3/mlp_in are both blocks/3 mlp.
function nodeOf(path) {
  const [layer] = path.match(/\d+/) ?? [path.startsWith("embed") ? -1 : 1e6];
  const kind = path.includes("mlp") ? "mlp" : path.includes("attn") ? "attn" : path.startsWith("embed") ? "embedded" : "output";
  return { name: kind === "embedded" || kind === "output" ? kind : `${layer} ${kind}`, layer: kind === "output" ? 1e6 : Number(layer), kind };
}

const LANES = { embedded: 1, attn: 0, mlp: 2, output: 1 };

function drawing(edges, redraw, context) {
  const nodes = new Map();
  for (const [sender, receiver] of edges) for (const path of [sender, receiver]) {
    const node = nodeOf(path);
    if (!nodes.has(node.name)) nodes.set(node.name, { ...node, path });
  }
  const layers = [...new Set([...nodes.values()].map((node) => node.layer))].sort((a, b) => a - b);
  for (const node of nodes.values()) {
    const place = moved.get(node.name) ?? { x: ROW.left + layers.indexOf(node.layer) * 74, y: ROW.top + LANES[node.kind] * 130 + (layers.indexOf(node.layer) % 3) * 26 };
    Object.assign(node, place);
  }
  const width = ROW.left * 2 + Math.max(layers.length - 1, 1) * 74;
  const height = 400;
  const root = svg("svg", { class: "chart graph", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${plural(edges.length, "edge")} between ${plural(nodes.size, "component")}` });
  root.style.width = `${width}px`;
  root.style.maxWidth = "none";
  const most = Math.max(...edges.map(([, , score]) => Math.abs(num(score))), 1e-12);
  for (const [sender, receiver, score] of edges) {
    const [a, b] = [nodes.get(nodeOf(sender).name), nodes.get(nodeOf(receiver).name)];
    if (a === b) continue;
    const bend = (b.x - a.x) / 2;
    const line = svg("path", {
      class: "edge",
      d: `M${a.x} ${a.y}C${a.x + bend} ${a.y} ${b.x - bend} ${b.y} ${b.x} ${b.y}`,
      stroke: num(score) < 0 ? "var(--below)" : "var(--above)",
      "stroke-width": Math.max(0.6, (6 * Math.abs(num(score))) / most),
      fill: "none",
      opacity: 0.35 + (0.6 * Math.abs(num(score))) / most,
    });
    line.addEventListener("pointermove", (event) => tip.show(event, `${sender} → ${receiver}\n${show(score)}`));
    line.addEventListener("pointerleave", tip.hide);
    root.append(line);
  }
  for (const node of nodes.values()) {
    const group = svg("g", { class: "node", tabindex: "0", role: "button", "aria-label": `${node.name}, ${node.path}` }, svg("rect", { x: node.x - 33, y: node.y - 11, width: 66, height: 22, rx: 6 }), svg("text", { x: node.x, y: node.y + 4, "text-anchor": "middle" }, node.name));
    const open = () => context.sites.some((site) => site.path === node.path) && update({ view: "site", path: node.path });
    group.addEventListener("keydown", (event) => event.key === "Enter" && open());
    group.addEventListener("pointerdown", (event) => {
      const start = { x: event.clientX, y: event.clientY };
      const scale = width / root.getBoundingClientRect().width;
      group.setPointerCapture(event.pointerId);
      group.onpointerup = (end) => {
        const by = { x: (end.clientX - start.x) * scale, y: (end.clientY - start.y) * scale };
        if (Math.hypot(by.x, by.y) < 4) open();
        else {
          moved.set(node.name, { x: node.x + by.x, y: node.y + by.y });
          redraw();
        }
      };
    });
    root.append(group);
  }
  return root;
}

// The form that graph viewers of other projects read: nodes and links.
function asGraph(edges, context) {
  const names = [...new Set(edges.flatMap(([sender, receiver]) => [sender, receiver]))];
  return {
    metadata: { slug: "sonde", prompt: context.tokens.map((token) => token.text).join(""), prompt_tokens: context.tokens.map((token) => token.text) },
    nodes: names.map((path) => ({ node_id: path, jsNodeId: path, feature_type: nodeOf(path).kind, layer: String(nodeOf(path).layer), clerp: path })),
    links: edges.map(([source, target, weight]) => ({ source, target, weight: num(weight) })),
  };
}
