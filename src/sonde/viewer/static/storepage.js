// A store on the page: its arrays, their rows with the tokens they belong to, and the features of its dictionaries.

import { buildTree, colorScale, el, paint, plural, scaleLegend, show, tip } from "/static/shared.js";
import { card } from "/static/exporting.js";
import { featureBrowser } from "/static/features.js";
import { rangeOf, unpacked } from "/static/numbers.js";
import { current, update } from "/static/state.js";
import { visible } from "/static/text.js";

const $ = (id) => document.getElementById(id);
const ROWS = 32;
const here = { path: "", at: -1, view: "site", feature: null }; // what is left of the state when a row becomes a prompt

export class StorePage {
  constructor(context) {
    this.context = context;
    this.drawing = 0;
  }

  start() {
    const { card: store, status } = this.context;
    document.querySelector(".side-head label").textContent = "Arrays";
    status(`${plural(store.arrays.length, "array")}, ${plural(store.batches, "batch").replace("batchs", "batches")}${store.finished ? "" : ", not finished"}`, store.finished ? "" : "bad");
    this.byName = new Map(store.arrays.map((array) => [nameOf(array), array]));
    this.tree = buildTree({
      root: $("tree"),
      empty: $("tree-empty"),
      filter: $("filter"),
      count: $("filter-count"),
      paths: [...this.byName.keys()],
      amount: (name) => this.byName.get(name)?.shape.join("×") ?? "",
      severity: () => undefined,
      nothing: "Nothing was stored yet.",
      select: (path) => update({ path, at: 0, feature: null, view: "rows" }),
    });
    return this.draw();
  }

  stop() {
    this.drawing += 1;
  }

  changed(now, before) {
    if (now.path !== before.path || now.at !== before.at || now.view !== before.view) return this.draw();
    return null;
  }

  resized() {
    this.draw();
  }

  async draw() {
    const { card: store, connection, trouble } = this.context;
    const number = ++this.drawing;
    const { path, at, view } = current();
    const dictionaries = store.dictionaries;
    this.drawTabs(dictionaries);
    const show = (content) => number === this.drawing && $("view").replaceChildren(content);
    try {
      if (view === "features" && dictionaries.length) {
        const dictionary = dictionaries.find((one) => one.path === path || one.reads === path) ?? dictionaries[0];
        this.tree.mark(dictionary.reads);
        const choice = el("select", { "aria-label": "Dictionary" }, ...dictionaries.map((one) => el("option", { value: one.path }, `${one.path} (${one.kind}, ${one.count})`)));
        choice.value = dictionary.path;
        choice.addEventListener("change", () => update({ path: choice.value, feature: null }));
        const box = el("div", { class: "stack" }, el("div", { class: "section-head" }, el("h2", {}, "Features"), el("label", { class: "inline" }, "Dictionary ", choice)));
        if (this.context.cards.some((one) => one.name === store.program && one.dictionaries.length)) box.append(el("p", { class: "quiet" }, `To change features in the program, open `, el("button", { class: "link", type: "button", on: { click: () => update({ subject: store.program, view: "features", path: dictionary.path, at: -1 }) } }, store.program), "."));
        show(box);
        box.append(await featureBrowser(connection, { subject: store.name, path: dictionary.path }));
        return;
      }
      const array = this.byName.get(path) ?? store.arrays[0];
      if (!array) return show(el("p", { class: "card quiet" }, "The store holds no array."));
      this.tree.mark(nameOf(array));
      show(await this.rows(array, Math.max(0, at)));
    } catch (error) {
      trouble(error);
      show(el("p", { class: "card quiet" }, `This cannot be shown: ${error.message}`));
    }
  }

  drawTabs(dictionaries) {
    const tabs = [["rows", "Rows"], ...(dictionaries.length ? [["features", "Features"]] : [])];
    const { view } = current();
    const isOn = (name) => (name === "features") === (view === "features");
    $("views").hidden = tabs.length < 2;
    $("views").replaceChildren(...tabs.map(([name, text]) => el("button", { class: `tab${isOn(name) ? " on" : ""}`, type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(isOn(name)), "aria-controls": "view", on: { click: () => update({ view: name }) } }, text)));
  }

  async rows(array, first) {
    const { connection, card: store } = this.context;
    const answer = await connection.ask("rows", { subject: store.name, path: array.path, kind: array.kind, first, count: ROWS });
    const values = unpacked(answer.values);
    const [rows, columns] = values.shape;
    const { low, high, bad } = rangeOf(values.data);
    const scale = colorScale(low, high, low < 0);
    const at = (i, j) => values.data[i * columns + j];
    const canvas = paint(el("canvas", { class: "map", role: "img", "aria-label": `${rows} rows of ${array.path}` }), rows, columns, at, scale);
    const available = Math.max(200, this.context.width() - 120);
    const tall = Math.max(4, Math.min(20, Math.floor(560 / rows)));
    canvas.style.width = `${Math.min(available, columns * 14)}px`;
    canvas.style.height = `${rows * tall}px`;
    const name = (i) => (answer.is_text ? `position ${i}` : `row ${answer.first + i}`) + (answer.tokens ? ` ${JSON.stringify(answer.tokens[i])}` : "");
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const i = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows)));
      const j = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns)));
      tip.show(event, `${name(i)}\nunit ${j}\n${show(at(i, j))}`);
    });
    canvas.addEventListener("pointerleave", tip.hide);
    const names = el("div", { class: "row-names mono", "aria-hidden": "true" }, ...Array.from({ length: rows }, (_, i) => {
      const line = el("div", {}, answer.tokens ? visible(answer.tokens[i]) : String(answer.is_text ? i : answer.first + i));
      line.style.height = line.style.lineHeight = `${tall}px`;
      return line;
    }));
    const code = `import sonde\n\nkept = sonde.store.open(${JSON.stringify(store.folder)})\nkept${{ values: "", grads: ".grads", taken: ".taken", keys: ".row_keys" }[array.kind]}[${JSON.stringify(array.path)}][${answer.is_text ? answer.first : `${answer.first}:${answer.first + rows}`}]`;
    return el(
      "div",
      { class: "stack" },
      el("div", { class: "section-head" }, el("h2", { class: "mono" }, nameOf(array)), this.pager(array, answer, rows)),
      el("div", { class: "facts" }, el("span", { class: "mono" }, array.text)),
      card(answer.is_text ? `Row ${show(answer.first)}: positions by units` : `Rows ${show(answer.first)} to ${show(answer.first + rows - 1)} by units`, [scaleLegend(scale, bad > 0), el("div", { class: "named-map" }, names, canvas)], {
        name: `${array.path}-rows`,
        code,
        note: answer.tokens ? "Beside each row is its token." : "",
        more: answer.tokens && answer.is_text && store.program ? [el("button", { class: "tool", type: "button", on: { click: () => update({ ...here, subject: store.program, prompt: answer.text }) } }, `Run in ${store.program}`)] : [],
      }),
    );
  }

  pager(array, answer, rows) {
    const step = answer.is_text ? 1 : ROWS;
    const last = array.shape[0] - 1;
    const go = (first) => update({ path: nameOf(array), at: Math.max(0, Math.min(last, first)), view: "rows" });
    const input = el("input", { type: "number", min: 0, max: last, value: answer.first, "aria-label": "First row" });
    input.addEventListener("change", () => go(Number(input.value) || 0));
    const button = (text, label, first, isOff) => el("button", { class: "tool", type: "button", "aria-label": label, disabled: isOff, on: { click: () => go(first) } }, text);
    return el(
      "div",
      { class: "switch" },
      button("‹", "Earlier rows", answer.first - step, answer.first <= 0),
      el("label", { class: "inline" }, "row ", input, ` of ${show(array.shape[0])}`),
      button("›", "Later rows", answer.first + step, answer.first + (answer.is_text ? 1 : rows) > last),
    );
  }
}

function nameOf(array) {
  return array.kind === "values" ? array.path : `${array.kind}/${array.path}`;
}
