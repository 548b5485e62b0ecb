// The layers as readers: what the output layer would say at every layer, and what each component adds to a logit.

import { el, heatMap, num, percent, plural, show } from "/static/shared.js";
import { addChange } from "/static/changeslist.js";
import { card } from "/static/exporting.js";
import { unpacked } from "/static/numbers.js";
import { current, explained, runOf, update } from "/static/state.js";
import { visible } from "/static/text.js";

export async function lensView(context) {
  const answer = await context.connection.ask("lens", runOf());
  const sure = unpacked(answer.sure);
  const [layers, positions, k] = sure.shape;
  const best = (layer, position) => sure.data[(layer * positions + position) * k];
  const text = (layer, position, rank = 0) => visible(answer.texts[answer.tokens[layer][position][rank]]);
  const values = Array.from({ length: layers }, (_, l) => Array.from({ length: positions }, (_, p) => best(l, p)));
  const picture = heatMap({
    title: "The best token at every layer and position",
    values: [...values].reverse(),
    rows: [...answer.layers].reverse(),
    columns: context.tokens.map((token) => visible(token.text)),
    column_title: "position",
    row_title: "",
    texts: values.map((row, l) => row.map((_, p) => text(l, p))).reverse(),
    signed: false,
    low: 0,
    high: 1,
    pick: (i, j) => update({ at: j === positions - 1 ? -1 : j, path: answer.layers[layers - 1 - i] }),
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
  const code = `lens = sonde.tools.logit_lens(f, ${context.card.stream.map((p) => JSON.stringify(p)).join(", ")}, readout=f.readout)(*args)\nlens.table(f.tokenizer)`;
  return el(
    "div",
    { class: "stack" },
    el("h2", {}, "Logit lens"),
    card("What would the model say if it stopped here?", picture, {
      name: "logit-lens",
      code,
      note: "The last norm and the output layer, applied to the stream after every layer; the last layer on top. Bright cells are sure. A click looks at that layer and position.",
    }),
    card("The best tokens by layer", el("div", { class: "scroll" }, ladder), { name: "logit-lens-table", code }),
  );
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
  const code = "sonde.tools.logit_attribution(f, ..., residual=..., readout=f.readout, metric=...)(*args)";
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
  const isThere = context.sites.some((site) => site.path === weights && site.attention);
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

