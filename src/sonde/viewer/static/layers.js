// The layers as readers: what the output layer would say at every layer, and what each component adds to a logit.

import { colorScale, el, heatMap, num, percent, plural, scaleLegend, show, svg, tip } from "/static/shared.js";
import { card } from "/static/exporting.js";
import { unpacked } from "/static/numbers.js";
import { addChange, current, explained, runOf, update } from "/static/state.js";
import { visible } from "/static/text.js";

export async function lensView(context) {
  const answer = await context.connection.ask("lens", runOf());
  const sure = unpacked(answer.sure);
  const [layers, positions, k] = sure.shape;
  const best = (layer, position) => sure.data[(layer * positions + position) * k];
  const text = (layer, position, rank = 0) => visible(answer.texts[answer.tokens[layer][position][rank]]);
  const picture = lensGrid({
    rows: answer.layers.map((name, layer) => ({ name, layer })).reverse(),
    columns: context.tokens.map((token) => visible(token.text)),
    sure: best,
    text,
    pick: (layer, j) => update({ at: j === positions - 1 ? -1 : j, path: answer.layers[layer] }),
  });
  const { at } = current();
  const position = at < 0 ? positions + at : Math.min(at, positions - 1);
  const ladder = el(
    "table",
    {},
    el("caption", {}, `After position ${position}, ${visible(context.tokens[position]?.text ?? "")}`),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "layer"), ...Array.from({ length: k }, (_, r) => el("th", { scope: "col" }, String(r + 1))))),
    el(
      "tbody",
      {},
      ...answer.layers
        .map((name, l) =>
          el(
            "tr",
            {},
            el("th", { scope: "row", class: "mono" }, name),
            ...Array.from({ length: k }, (_, r) => el("td", {}, el("span", { class: "mono" }, text(l, position, r)), ` ${percent(sure.data[(l * positions + position) * k + r])}`)),
          ),
        )
        .reverse(),
    ),
  );
  const code = () => context.python(`lens = sonde.tools.logit_lens(f, ${context.card.stream.map((p) => JSON.stringify(p)).join(", ")}, readout=${answer.readout}${context.card.inside})(*args)\nprint(lens)`);
  return el(
    "div",
    { class: "stack" },
    el("h2", {}, "Logit lens"),
    card("What would the model say if it stopped here?", picture, {
      name: "logit-lens",
      code,
      note: "The last norm and the output layer, applied to the stream after every layer; the last layer on top. Bright cells are sure. A click looks at that layer and position.",
    }),
    card("The best tokens by layer", el("div", { class: "scroll", tabindex: "0" }, ladder), { name: "logit-lens-table", code }),
  );
}

const CELL = { w: 74, h: 19, left: 108 };

// A grid of words: a row for each layer, a column for each position; a cell is brighter the surer the layer is.
function lensGrid({ rows, columns, sure, text, pick }) {
  const scale = colorScale(0, 1, false);
  const [width, height] = [CELL.left + columns.length * CELL.w, (rows.length + 1) * CELL.h + 6];
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `The best token of ${rows.length} layers at ${columns.length} positions` });
  root.style.width = `${width}px`;
  root.style.maxWidth = "none";
  const clipped = (word, n) => (word.length > n ? `${word.slice(0, n - 1)}…` : word);
  columns.forEach((name, j) => root.append(svg("text", { x: CELL.left + (j + 0.5) * CELL.w, y: 12, "text-anchor": "middle" }, clipped(name, 11))));
  rows.forEach(({ name, layer }, i) => {
    const y = (i + 1) * CELL.h;
    root.append(svg("text", { x: CELL.left - 8, y: y + 13, "text-anchor": "end" }, clipped(name, 17)));
    columns.forEach((_, j) => {
      const [r, g, b] = scale.color(sure(layer, j));
      const cell = svg("rect", { x: CELL.left + j * CELL.w, y, width: CELL.w - 1, height: CELL.h - 1, rx: 2, fill: `rgb(${r} ${g} ${b})` });
      const word = svg("text", { x: CELL.left + (j + 0.5) * CELL.w, y: y + 13, "text-anchor": "middle" }, clipped(text(layer, j), 11));
      word.style.fill = 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#16191c" : "#ffffff";
      root.append(cell, word);
    });
  });
  const place = (event) => {
    const box = root.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * width - CELL.left;
    const y = ((event.clientY - box.top) / box.height) * height - CELL.h;
    const [i, j] = [Math.floor(y / CELL.h), Math.floor(x / CELL.w)];
    return rows[i] && j >= 0 && j < columns.length ? [rows[i].layer, j] : null;
  };
  root.append(
    svg("rect", {
      class: "hit",
      x: CELL.left,
      y: CELL.h,
      width: columns.length * CELL.w,
      height: rows.length * CELL.h,
      on: {
        pointermove: (event) => {
          const cell = place(event);
          if (cell) tip.show(event, `${rows.find((row) => row.layer === cell[0]).name}, after ${columns[cell[1]]}\n${text(...cell)}: ${percent(sure(...cell))}`);
        },
        pointerleave: tip.hide,
        click: (event) => {
          const cell = place(event);
          if (cell) pick(...cell);
        },
      },
    }),
  );
  return el("div", {}, scaleLegend(scale, false), el("div", { class: "scroll-x", tabindex: "0" }, root));
}

const SHOWN = 14;

export async function attributionView(context) {
  const answer = await context.connection.ask("attribution", { ...runOf(), explained: explained() });
  const parts = [];
  for (const { path, total, units } of answer.components) {
    if (!units) parts.push({ path, unit: null, value: num(total) });
    else Array.from(unpacked(units).data).forEach((value, unit) => parts.push({ path, unit, value }));
  }
  const byHead = answer.components.filter((component) => component.units && unpacked(component.units).data.length > 1);
  const most = [...parts].sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, SHOWN);
  const top = Math.max(...most.map((part) => Math.abs(part.value)), 1e-9);
  const list = el("ol", { class: "contributions" });
  for (const part of most) {
    const bar = el("span", { class: "bar signed", "aria-hidden": "true" }, el("i", { class: part.value < 0 ? "below" : "above" }));
    const width = (50 * Math.abs(part.value)) / top;
    bar.firstChild.style.width = `${width}%`;
    bar.firstChild.style.left = part.value < 0 ? `${50 - width}%` : "50%";
    list.append(
      el(
        "li",
        {},
        el("button", { class: "link mono", type: "button", on: { click: () => open(context, part) } }, part.unit === null ? part.path : `${part.path}, head ${part.unit}`),
        bar,
        el("span", { class: "share" }, show(part.value)),
        part.unit === null ? el("span") : zero(context, part),
      ),
    );
  }
  const what = `${JSON.stringify(answer.token)}${answer.against === null ? "" : ` minus ${JSON.stringify(answer.against)}`}`;
  const sum = parts.reduce((all, part) => all + part.value, 0);
  const box = el("div", { class: "stack" }, el("h2", {}, "Direct logit attribution"), el("p", { class: "quiet" }, context.explainedText()));
  const code = () => context.python(answer.code);
  box.append(
    card(`What adds to ${what} after position ${answer.position}`, list, {
      name: "attribution",
      code,
      note: `The logit is ${show(answer.output)}; all ${plural(parts.length, "part")} together add ${show(sum)}. The scale of the last norm is held constant; biases are not shown.`,
    }),
  );
  if (byHead.length) {
    const values = byHead.map((component) => Array.from(unpacked(component.units).data));
    box.append(
      card(
        "By layer and head",
        heatMap({
          title: "Contributions by layer and head",
          values,
          rows: byHead.map((component) => component.path),
          columns: values[0].map((_, h) => String(h)),
          column_title: "head",
          row_title: "",
          signed: true,
          pick: (i, j) => open(context, { path: byHead[i].path, unit: j }),
        }),
        { name: "attribution-heads", code },
      ),
    );
  }
  return box;
}

function open(context, { path, unit }) {
  const weights = path.replace(/heads$/, "weights");
  const isThere = context.sites.some((site) => site.path === weights && site.square);
  if (unit !== null && isThere) update({ view: "attention", path: weights, head: unit });
  else update({ view: "site", path });
}

function zero(context, { path, unit }) {
  const site = context.sites.find((entry) => entry.path === path);
  const axis = site ? site.axes.indexOf("heads") : -1;
  if (axis < 0) return el("span");
  return el(
    "button",
    { class: "tool", type: "button", "aria-label": `Zero head ${unit} of ${path}`, on: { click: () => addChange({ kind: "ablate", path, call: 0, chosen: { [axis]: [unit] } }) } },
    "Zero",
  );
}

