// The features of a dictionary: all of them by how often they are active, a search, and one in detail: where it is most
// active, what it does to logits, which features write alike; and changes of the program by it.

import { el, num, percent, plural, show, svg, tip } from "/static/shared.js";
import { card, saveJson } from "/static/exporting.js";
import { unpacked } from "/static/numbers.js";
import { addChange, current, runOf, update } from "/static/state.js";
import { visible } from "/static/text.js";

const AT_ONCE = 40; // features in the list
const ORDERS = {
  active: "active at the chosen token",
  density: "most often active",
  rare: "most rarely active",
  highest: "most strongly active",
  mean: "highest mean",
  dead: "never active",
};

// ------------------------------------------------------------------------------------------------ in a program

export async function featuresView(context) {
  const { path } = current();
  const { dictionaries } = context.card;
  const dictionary = dictionaries.find((one) => path === one.path || path.startsWith(`${one.path}/`)) ?? dictionaries[0];
  const store = context.cards.find((one) => one.kind === "store" && one.dictionaries.some((d) => d.path === dictionary.path));
  const { axes, shape } = context.sites.find((site) => site.path === dictionary.features);
  const along = axes.indexOf("length");
  const position = current().at < 0 ? (shape[along] ?? 0) + current().at : current().at;
  const index = shape.map((_, axis) => (axis === along ? position : 0));
  const answer = await context.connection.ask("picture", { ...runOf(), path: dictionary.features, rows: -1, columns: shape.length - 1, index });
  const here = unpacked(answer.values).data;
  const choice = el("select", { "aria-label": "Dictionary" }, ...dictionaries.map((one) => el("option", { value: one.path }, one.path)));
  choice.value = dictionary.path;
  choice.addEventListener("change", () => update({ path: choice.value, feature: null }));
  const box = el("div", { class: "stack" }, el("div", { class: "section-head" }, el("h2", {}, "Features"), el("label", { class: "inline" }, "Dictionary ", choice)));
  const change = { dictionary, axes };
  const token = along < 0 ? "the first example" : visible(context.tokens[position]?.text ?? String(position));
  box.append(spliceCard(dictionary));
  if (store) box.append(await featureBrowser(context.connection, { subject: store.name, path: dictionary.path }, { here, change, token }));
  else {
    box.append(listCard(order(here, "active").filter((i) => here[i] > 0).slice(0, AT_ONCE), { here, token, title: `Active at ${token}` }));
    if (current().feature !== null) box.append(changeCard(current().feature, change));
    box.append(el("p", { class: "card quiet" }, "To see where features are most active, open a store of values beside the program: sonde view PROGRAM STORE --dictionary PATH=FOLDER."));
  }
  return box;
}

// What the dictionary misses is added back; without it the program runs on features alone.
function spliceCard(dictionary) {
  const off = { kind: "ablate", path: dictionary.error, call: 0, chosen: {} };
  const splice = el("button", { class: "button", type: "button", on: { click: () => addChange(off) } }, "Splice: without the error");
  return el("div", { class: "card form" }, el("span", {}, `${plural(dictionary.count, "feature")} stand for ${dictionary.path}; what they miss is added back.`), splice);
}

function changeCard(index, { dictionary, axes }) {
  const unit = axes.length ? axes.length - 1 : 2;
  const by = el("input", { type: "number", class: "factor", value: 10, step: 1, "aria-label": "How far to steer" });
  const make = (kind, more = {}) => addChange({ kind, path: dictionary.features, call: 0, chosen: { [unit]: [index] }, ...more });
  const button = (text, act) => el("button", { class: "button", type: "button", on: { click: act } }, text);
  return el(
    "div",
    { class: "card form" },
    el("b", {}, `Feature ${index}`),
    button("Zero", () => make("ablate")),
    el("span", { class: "group" }, button("Steer by", () => make("add", { factor: Number(by.value) })), by),
    button("Double", () => make("scale", { factor: 2 })),
    button("Show as a site", () => update({ view: "site", path: dictionary.features })),
  );
}

// ---------------------------------------------------------------------------------------------------- all features

// place: {subject, path} of the store;  here: the activations at a token of the program;  change: what can be changed
export async function featureBrowser(connection, place, { here = null, change = null, token = "" } = {}) {
  const bar = el("progress", { max: 1, "aria-label": "Progress" });
  const line = el("p", { class: "quiet", "aria-live": "polite" }, "Looking for the best examples of every feature …");
  const box = el("div", { class: "stack" }, el("div", { class: "card" }, line, bar));
  const news = ({ done, total, text }) => {
    bar.value = done / total;
    line.textContent = `${show(done)} of ${show(total)} ${text}`;
  };
  connection.ask("features", place, { news }).then(
    (answer) => box.replaceChildren(...browser(connection, place, tableOf(answer, here), { change, token })),
    (error) => box.replaceChildren(el("p", { class: "card quiet" }, error.message)),
  );
  return box;
}

function tableOf(answer, here) {
  const columns = Object.fromEntries(["density", "mean", "highest"].map((name) => [name, unpacked(answer[name]).data]));
  return { ...answer, ...columns, here };
}

function order(values, by) {
  const sign = by === "rare" ? 1 : -1;
  return Array.from(values.keys()).sort((a, b) => sign * (values[a] - values[b]));
}

function browser(connection, place, table, { change, token }) {
  const choice = el(
    "select",
    { id: "feature-order", "aria-label": "Order" },
    ...Object.entries(ORDERS)
      .filter(([name]) => name !== "active" || table.here)
      .map(([name, text]) => el("option", { value: name }, name === "active" ? `active at ${token}` : text)),
  );
  const find = el("input", { type: "search", id: "find", placeholder: "Search texts, or a number", value: current().find, "aria-label": "Search features" });
  const list = el("div", {});
  const detail = el("div", { class: "stack", id: "feature", tabindex: "-1" });
  const fill = async () => {
    const text = find.value.trim();
    let [listed, title] = [ordered(table, choice.value), `${plural(table.density.length, "feature")}, ${choice.selectedOptions[0].textContent}`];
    try {
      if (/^\d+$/.test(text) && Number(text) < table.density.length) open(Number(text));
      else if (text) {
        const answer = await connection.ask("find_features", { ...place, text });
        [listed, title] = [answer.features, `${plural(answer.of, "feature")} with “${text}”`];
      }
    } catch (error) {
      title = error.message;
    }
    list.replaceChildren(listCard(listed.slice(0, AT_ONCE), { table, here: table.here, token, title, place, connection, open }));
  };
  const open = async (index) => {
    update({ feature: index, path: current().path || place.path }, { replace: current().feature === null });
    await drawDetail(index);
    detail.focus({ preventScroll: false });
  };
  const drawDetail = async (index) => {
    try {
      const answer = await connection.ask("feature", { ...place, index });
      detail.replaceChildren(...(change ? [changeCard(index, change)] : []), ...featureCards(answer, place, open));
    } catch (error) {
      detail.replaceChildren(el("p", { class: "card quiet" }, error.message));
    }
  };
  choice.addEventListener("change", fill);
  find.addEventListener("change", () => {
    update({ find: find.value }, { replace: true });
    fill();
  });
  fill();
  if (current().feature !== null) drawDetail(current().feature);
  return [
    densityCard(table, place),
    el("div", { class: "card form" }, el("label", { class: "inline" }, "Order ", choice), find, el("span", { class: "quiet" }, `${plural(table.dead, "feature")} never active in ${plural(table.positions, "position")}`)),
    list,
    detail,
  ];
}

function ordered(table, by) {
  if (by === "dead") return order(table.density, "rare").filter((i) => table.density[i] === 0);
  const values = by === "active" ? table.here : by === "rare" ? table.density : table[by];
  const alive = order(values, by).filter((i) => (by === "active" ? values[i] > 0 : table.density[i] > 0));
  return alive;
}

function listCard(listed, { table = null, here = null, token = "", title, place = null, connection = null, open = (index) => update({ feature: index }) }) {
  const columns = [["feature", null], ...(table ? [["active", (i) => percent(table.density[i])], ["mean", (i) => show(table.mean[i])], ["highest", (i) => show(table.highest[i])]] : []), ...(here ? [[`at ${token}`, (i) => show(here[i])]] : [])];
  const row = (i) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, el("button", { class: "link mono", type: "button", "aria-label": `Feature ${i}`, on: { click: () => open(i) } }, String(i))),
      ...columns.slice(1).map(([, value]) => el("td", {}, value(i))),
    );
  const exported = el("button", { class: "tool", type: "button" }, "Neuronpedia JSON");
  exported.addEventListener("click", async () => {
    exported.disabled = true;
    try {
      saveJson(await connection.ask("neuronpedia", { ...place, indices: listed }), `${place.path.replace(/\W+/g, "-")}-features.json`);
    } finally {
      exported.disabled = false;
    }
  });
  const dashboard = el("button", { class: "tool", type: "button" }, "Keep for the saved page");
  dashboard.addEventListener("click", async () => {
    for (const [done, index] of listed.entries()) {
      dashboard.textContent = `${done + 1} of ${listed.length}`;
      await connection.ask("feature", { ...place, index });
    }
    dashboard.textContent = "Kept: use Save page";
  });
  const body = listed.length
    ? el("div", { class: "scroll", tabindex: "0" }, el("table", { class: "feature-list" }, el("thead", {}, el("tr", {}, ...columns.map(([name]) => el("th", { scope: "col" }, name)))), el("tbody", {}, ...listed.map(row))))
    : el("p", { class: "quiet" }, "There are none.");
  return card(title, body, { name: "features", note: listed.length === AT_ONCE ? `The first ${AT_ONCE}.` : "", more: connection && listed.length ? [dashboard, exported] : [] });
}

const BINS = 30;

// How many features are active how often, by the logarithm of the share of positions.
function densityCard(table, place) {
  const logs = Array.from(table.density).filter((x) => x > 0).map(Math.log10);
  if (!logs.length) return el("p", { class: "card quiet" }, "No feature is active anywhere in the store.");
  const low = Math.floor(Math.min(...logs));
  const counts = new Array(BINS).fill(0);
  for (const x of logs) counts[Math.min(BINS - 1, Math.floor(((x - low) / -low || 0) * BINS))] += 1;
  const name = (i) => percent(10 ** (low - (low * i) / BINS));
  return card("How often features are active", bars(counts, { label: (i) => `${name(i)} to ${name(i + 1)} of the positions`, unit: "feature", ends: (i) => name(i), name: `Features by how often they are active: ${plural(table.dead, "feature")} never` }), {
    name: `${place.path}-density`,
    note: `Each bar counts the features that are active in such a share of ${plural(table.positions, "position")}.`,
  });
}

// Bars with a few names below.
function bars(counts, { label, unit, ends, name }) {
  const [width, height, base] = [420, 130, 108];
  const most = Math.max(...counts, 1);
  const w = width / counts.length;
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name });
  root.append(svg("line", { class: "grid", x1: 0, x2: width, y1: base, y2: base }));
  const step = Math.max(1, Math.ceil(counts.length / 6));
  counts.forEach((n, i) => {
    const h = n ? Math.max(2, (n / most) * (base - 8)) : 0;
    if (n) root.append(svg("rect", { x: i * w + w * 0.08, y: base - h, width: w * 0.84, height: h, rx: 2, fill: "var(--value)" }));
    if (i % step === 0) root.append(svg("text", { x: i * w, y: base + 16, "text-anchor": i ? "middle" : "start" }, ends(i)));
    root.append(svg("rect", { class: "hit", x: i * w, y: 0, width: w, height: base, on: { pointermove: (event) => tip.show(event, `${label(i)}\n${plural(n, unit)}`), pointerleave: tip.hide } }));
  });
  return root;
}

// ----------------------------------------------------------------------------------------------------- one feature

function featureCards(answer, place, open) {
  const title = `Feature ${answer.index} of ${place.path}`;
  const facts = `Active at ${percent(num(answer.density))} of the positions, ${show(answer.mean)} on average, ${show(answer.highest)} at most.`;
  const cards = [examplesCard(answer, title, facts)];
  const { counts, ends } = answer.histogram;
  const used = counts.map((n, i) => (n ? i : -1)).filter((i) => i >= 0);
  if (used.length) {
    const [first, last] = [used[0], used[used.length - 1] + 1];
    cards.push(card("Its values where it is active", bars(counts.slice(first, last), { label: (i) => `${show(ends[first + i])} to ${show(ends[first + i + 1])}`, unit: "position", ends: (i) => show(ends[first + i]), name: `Values of feature ${answer.index}` }), { name: `feature-${answer.index}-values`, note: "Each bar counts the positions at which the feature is so active." }));
  }
  if (answer.effects) cards.push(effectsCard(answer));
  cards.push(neighborsCard(answer, open));
  return cards;
}

function examplesCard(answer, title, facts) {
  const high = Math.max(num(answer.highest), 1e-12);
  const example = (one) => {
    const chips = one.tokens.map((token, i) => {
      const value = Math.max(0, num(one.values[i]));
      const chip = el("span", { class: `piece${one.first + i === one.position ? " best" : ""}`, title: `${token} ${show(value)}` }, visible(token));
      chip.style.setProperty("--shade", value / high);
      return chip;
    });
    return el("li", {}, el("span", { class: "share" }, show(one.value)), el("p", { class: `example mono${answer.spaced ? " spaced" : ""}`, "aria-label": one.tokens.join("") }, ...chips));
  };
  const body = answer.examples.length ? el("ol", { class: "examples" }, ...answer.examples.map(example)) : el("p", { class: "quiet" }, "It is never active in the store.");
  return card(title, [el("p", {}, facts), body], {
    name: `feature-${answer.index}`,
    note: "Where it is most active, with the tokens around; the darker, the more active.",
  });
}

function effectsCard(answer) {
  const side = (name, list) => {
    const most = Math.max(...list.map(([, by]) => Math.abs(num(by))), 1e-12);
    return el(
      "div",
      {},
      el("h4", {}, name),
      el(
        "ol",
        { class: "next" },
        ...list.map(([token, by]) => el("li", {}, el("span", { class: "likely mono" }, visible(token)), el("span", { class: "bar", "aria-hidden": "true" }, el("i", { class: num(by) < 0 ? "below" : "above", width: `${(100 * Math.abs(num(by))) / most}%` })), el("span", { class: "share" }, show(by)))),
      ),
    );
  };
  return card("What it does to logits", el("div", { class: "sides" }, side("raises", answer.effects.raised), side("lowers", answer.effects.lowered)), {
    name: `feature-${answer.index}-logits`,
    note: "By what it writes into the stream, with the last norm at a scale of one.",
  });
}

function neighborsCard(answer, open) {
  const list = answer.neighbors.map(([index, alike]) => el("li", {}, el("button", { class: "link mono", type: "button", "aria-label": `Feature ${index}`, on: { click: () => open(index) } }, String(index)), el("span", { class: "share" }, show(alike))));
  return card("Features that write alike", list.length ? el("ol", { class: "best" }, ...list) : el("p", { class: "quiet" }, "There is only one."), { name: `feature-${answer.index}-neighbors`, note: "The cosine between what they write: 1 is the same direction, −1 the opposite." });
}


