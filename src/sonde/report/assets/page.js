// Puts the page together: findings, panels, flow, tree, and the site that was chosen.

const data = JSON.parse(document.getElementById("data").textContent);
const byPath = new Map();
for (const site of data.sites) byPath.set(site.path, [...(byPath.get(site.path) || []), site]);
const picturesOf = new Map();
for (const picture of data.pictures) picturesOf.set(picture.path, [...(picturesOf.get(picture.path) || []), picture]);
const severityOf = new Map();
for (const f of [...data.findings].reverse()) {
  for (const path of [...f.also, f.path]) severityOf.set(path, f.severity); // the worst comes last, and stays
}
const $ = (id) => document.getElementById(id);

let tree = null;
let redraw = () => {};

function select(path, { move = true } = {}) {
  const arrays = byPath.get(path);
  if (!arrays) return;
  const section = $("site");
  section.hidden = false;
  $("site-title").textContent = path;
  const about = data.findings.filter((f) => f.path === path);
  $("site-body").replaceChildren(
    ...about.map((f) =>
      el("p", { class: `card about finding ${f.severity}` }, badge(f.severity), el("span", {}, f.text)),
    ),
    siteDetail(path, arrays, picturesOf.get(path) || [], data),
  );
  tree.mark(path);
  showLayer(path);
  if (!move) return;
  // The output of a notebook is a page without an address.
  if (location.protocol !== "about:") history.replaceState(null, "", `#${encodeURIComponent(path)}`);
  $("site-title").focus({ preventScroll: true });
  section.scrollIntoView({ block: "start" });
}

// A slider from layer to layer of the family that the site belongs to.
function showLayer(path) {
  const family = data.families.find((f) => f.members.some((i) => data.sites[i].path === path));
  $("layer-label").hidden = !family;
  if (!family) return;
  const paths = [...new Set(family.members.map((i) => data.sites[i].path))];
  const slider = $("layer");
  slider.max = paths.length - 1;
  slider.value = paths.indexOf(path);
  $("layer-at").textContent = `${layerOf(path, family.name)} (${slider.valueAsNumber + 1} of ${paths.length})`;
  slider.oninput = () => select(paths[slider.valueAsNumber], { move: false });
}

// The part of a path that the star in its family's name replaces.
function layerOf(path, family) {
  const at = family.split("/").indexOf("*");
  return path.split("/")[at] ?? path;
}

// The site that the address names; empty if it names none.
function askedPath() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return ""; // a hand-made address
  }
}

const finding = (entry) => findingItem(entry, { has: (path) => byPath.has(path), open: select });

const FINDINGS_AT_ONCE = 12;

function showFindings() {
  const body = $("findings-body");
  const list = el("ul", { class: "findings" }, ...data.findings.slice(0, FINDINGS_AT_ONCE).map(finding));
  const rest = data.findings.slice(FINDINGS_AT_ONCE);
  const more = el(
    "button",
    {
      class: "button more",
      type: "button",
      on: {
        click: () => {
          list.append(...rest.map(finding));
          more.remove();
        },
      },
    },
    `Show ${plural(rest.length, "more finding")}`,
  );
  if (data.findings.length) body.append(list, ...(rest.length ? [more] : []));
  else
    body.append(
      el(
        "p",
        { class: "card fine" },
        `Nothing wrong was found. ${data.checked || ""}`,
      ),
    );
  if (data.failure) {
    body.append(
      el(
        "details",
        {},
        el("summary", {}, `The whole message of the ${data.failure.kind}`),
        el("pre", {}, data.failure.message),
      ),
    );
  }
}

function panel(p) {
  const draw = { heatmap: heatMap, lines: linesPanel, text: textPanel }[p.kind];
  const numbers = p.kind === "heatmap" ? p : p.kind === "lines" ? asMatrix(p) : {};
  return el("div", { class: "card" }, el("h3", {}, p.title), figure(p.caption, draw(p)), ...behind(numbers, p.code));
}

function asMatrix(p) {
  return { values: p.lines.map((line) => line.y), rows: p.lines.map((line) => line.name), columns: p.x.map(show) };
}

const LINE_COLORS = ["var(--value)", "var(--gradient)", "#2a9d6e", "#a05fc0", "#b5891b", "#7a828b"];

function linesPanel(p) {
  const lines = p.lines.map((line, i) => ({
    name: line.name,
    color: LINE_COLORS[i % LINE_COLORS.length],
    dash: i >= LINE_COLORS.length,
    y: line.y.map(num),
    bad: line.y.map((y) => !Number.isFinite(num(y))),
  }));
  const x = p.x.map(num);
  const n = x.length;
  const at = [...new Set([0, 0.25, 0.5, 0.75, 1].map((share) => Math.round(share * (n - 1))))].filter((i) => i >= 0);
  const title = p.x_title || "step";
  const chart = lineChart({
    lines,
    x,
    labels: x.map((v) => `${title} ${show(v)}`),
    ticks: at.map((i) => ({ at: i, text: show(x[i]) })),
    log: p.log,
    xTitle: p.x_title,
    yTitle: p.y_title,
    height: 240,
    name: `${p.title}: ${lines.map((line) => line.name).join(", ")}`,
  });
  return el("div", {}, lineLegend(lines), chart);
}

function textPanel(p) {
  return el(
    "div",
    { class: "stack" },
    ...p.text
      .split(/\n\s*\n/)
      .filter((t) => t.trim())
      .map((paragraph) => el("p", {}, paragraph)),
  );
}

function drawPanels() {
  $("panels").hidden = !data.panels.length;
  $("panels").replaceChildren(el("div", { class: "stack" }, ...data.panels.map(panel)));
}

// The functions line by line, the one with the most unusual line first.
function drawSource() {
  const functions = data.source || [];
  $("source").hidden = !functions.length;
  $("source-body").replaceChildren(...sourceList(functions));
}

function start() {
  $("title").textContent = data.title;
  const counts = ["problem", "warning", "note"]
    .map((s) => [s, data.findings.filter((f) => f.severity === s).length])
    .filter(([, n]) => n);
  const told = counts.length ? counts.map(([s, n]) => plural(n, s)).join(", ") : "no findings";
  $("about").textContent =
    `${plural(byPath.size, "site")}, ${told}. Made ${data.made} with Sonde ${data.versions.sonde} and JAX ${data.versions.jax}.`;
  showFindings();
  drawPanels();
  drawSource();
  const amount = (path) => {
    const side = byPath
      .get(path)
      .map((s) => s.value || s.gradient)
      .find(Boolean);
    return side ? show(side.rms) : "";
  };
  tree = buildTree({
    root: $("tree"),
    empty: $("tree-empty"),
    filter: $("filter"),
    count: $("filter-count"),
    paths: [...byPath.keys()],
    amount,
    severity: (path) => severityOf.get(path),
    select,
  });
  setUpHeads({ section: $("heads"), choice: $("heads-choice"), body: $("heads-body"), data, select });
  redraw = setUpFlow({ section: $("flow"), choice: $("flow-choice"), body: $("flow-body"), data, select });
  let width = chartWidth();
  addEventListener("resize", () => {
    if (chartWidth() === width) return;
    width = chartWidth();
    redraw();
    drawPanels();
    const path = $("site-title").textContent;
    if (!$("site").hidden) select(path, { move: false });
  });
  addEventListener("hashchange", () => byPath.has(askedPath()) && select(askedPath()));
  const asked = askedPath();
  const flagged = data.findings.map((f) => f.path).find((path) => byPath.has(path));
  if (byPath.has(asked)) select(asked);
  else if (byPath.size) select(flagged || byPath.keys().next().value, { move: false });
}

start();
