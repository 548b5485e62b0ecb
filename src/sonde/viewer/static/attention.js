// Attention: all heads of a layer as thumbnails, one large; lines from the hovered token to what it looks at.

import { colorScale, el, heatMap, paint, scaleLegend, show, tip } from "/static/shared.js";
import { card } from "/static/exporting.js";
import { rangeOf, rowsOf, unpacked } from "/static/numbers.js";
import { addChange, current, runOf, update } from "/static/state.js";
import { visible } from "/static/text.js";

export async function attentionView(context) {
  const state = current();
  const answer = await context.connection.ask("attention", { ...runOf(), path: state.path });
  const { layers, path } = answer;
  if (!layers.length)
    return el("p", { class: "card quiet" }, "No site holds attention weights: rows of numbers between 0 and 1 with a sum of one, queries by keys.");
  const heads = unpacked(answer.heads);
  const [count, queries, keys] = heads.shape;
  const head = Math.min(state.head, count - 1);
  const at = (h) => (i, j) => heads.data[(h * queries + i) * keys + j];
  const scale = colorScale(0, Math.max(rangeOf(heads.data).high, 1e-9), false);
  const box = el("div", { class: "stack" });
  const select = el("select", { "aria-label": "Layer" }, ...layers.map((layer) => el("option", { value: layer }, layer)));
  select.value = path;
  select.addEventListener("change", () => update({ path: select.value }));
  const thumbs = el("div", { class: "thumbs", role: "radiogroup", "aria-label": "Heads" });
  for (let h = 0; h < count; h++) {
    const canvas = paint(el("canvas", { class: "map", "aria-hidden": "true" }), queries, keys, at(h), scale);
    thumbs.append(
      el(
        "button",
        {
          class: `thumb${h === head ? " chosen" : ""}`,
          type: "button",
          role: "radio",
          "aria-checked": String(h === head),
          "aria-label": `Head ${h}`,
          on: { click: () => update({ head: h, path }) },
        },
        canvas,
        el("span", {}, `head ${h}`),
      ),
    );
  }
  box.append(
    el("div", { class: "section-head" }, el("h2", {}, "Attention"), el("label", { class: "inline" }, "Layer ", select)),
    card(`Heads of ${path}`, [scaleLegend(scale, false), thumbs], { name: `${path}-heads`, code: () => context.python(codeOf(context, path)) }),
    card(`Head ${head}`, [looks(context, at(head), queries, keys), largeMap(context, at(head), queries, keys, scale), headTools(context, path, head)], {
      name: `${path}-head-${head}`,
      code: () => context.python(codeOf(context, path, head)),
    }),
    await kinds(context),
  );
  return box;
}

function codeOf(context, path, head) {
  const name = JSON.stringify(path);
  return `_, records = sonde.capture(f, ${name}${context.card.inside})(*args)\nweights = records[${name}].value${head === undefined ? "" : `[0, ${head}]`}`;
}

const LARGEST = 560;

function largeMap(context, at, queries, keys, scale) {
  const canvas = paint(el("canvas", { class: "map large", role: "img", "aria-label": `Attention, ${queries} queries by ${keys} keys` }), queries, keys, at, scale);
  const size = Math.min(LARGEST, context.width() - 110);
  canvas.style.width = `${Math.min(size, keys * 26)}px`;
  canvas.style.height = `${Math.min(size, queries * 26)}px`;
  const name = (i) => (context.tokens[i] ? `${i} ${JSON.stringify(context.tokens[i].text)}` : `${i}`);
  canvas.addEventListener("pointermove", (event) => {
    const bounds = canvas.getBoundingClientRect();
    const i = Math.min(queries - 1, Math.max(0, Math.floor(((event.clientY - bounds.top) / bounds.height) * queries)));
    const j = Math.min(keys - 1, Math.max(0, Math.floor(((event.clientX - bounds.left) / bounds.width) * keys)));
    tip.show(event, `query ${name(i)}\nkey ${name(j)}\n${show(at(i, j))}`);
  });
  canvas.addEventListener("pointerleave", tip.hide);
  return el("figure", {}, canvas, el("figcaption", {}, "A row is a query, a column is a key; brighter means more attention."));
}

// The text itself: the chosen token looks at those that are dark.
function looks(context, at, queries, keys) {
  if (context.tokens.length !== keys) return el("div", {});
  const strip = el("div", { class: "tokens looks" });
  const line = el("p", { class: "quiet", "aria-live": "polite" });
  const chips = context.tokens.map((token, i) =>
    el("button", { class: "token", type: "button", "aria-label": `Query ${i} ${JSON.stringify(token.text)}`, on: { pointerenter: () => look(i), focus: () => look(i), click: () => look(i) } }, visible(token.text)),
  );
  function look(query) {
    let best = 0;
    chips.forEach((chip, j) => {
      chip.style.setProperty("--shade", at(query, j));
      chip.classList.toggle("chosen", j === query);
      if (at(query, j) > at(query, best)) best = j;
    });
    line.textContent = `${visible(context.tokens[query].text)} looks most at ${visible(context.tokens[best].text)} (position ${best}, ${show(at(query, best))}). Hover over a token, or go to it with Tab.`;
  }
  const { at: position } = current();
  look(position < 0 ? queries + position : Math.min(position, queries - 1));
  strip.append(...chips);
  return el("div", {}, strip, line);
}

function headTools(context, path, head) {
  // What a head writes is changed where it is written, if there is such a site; its pattern alone otherwise.
  const [site] = [path.replace(/weights$/, "heads"), path].flatMap((name) =>
    context.sites.filter((one) => one.path === name && one.axes.includes("heads")),
  );
  if (!site) return el("div", {});
  const make = (kind) => addChange({ kind, path: site.path, call: 0, chosen: { [site.axes.indexOf("heads")]: [head] } });
  const button = (text, kind) => el("button", { class: "button", type: "button", on: { click: () => make(kind) } }, text);
  return el("div", { class: "buttons" }, button("Zero this head", "ablate"), button("Replace it by its mean", "mean"));
}

// What kind of heads there are, in all layers.
async function kinds(context) {
  const answer = await context.connection.ask("heads", runOf());
  const box = el("div", { class: "stack" });
  const choice = el(
    "select",
    { "aria-label": "Kind of head" },
    ...[
      ["induction", "the token after an earlier copy (induction)"],
      ["previous", "the token before"],
      ["duplicate", "earlier copies of the token"],
    ].map(([value, text]) => el("option", { value }, text)),
  );
  const draw = () => {
    const values = rowsOf(unpacked(answer[choice.value]));
    if (!values.flat().some(Number.isFinite)) {
      const needed = choice.value === "previous" ? "at least two tokens" : "a token that occurs twice";
      box.replaceChildren(el("p", {}, `This can be seen with ${needed} in the prompt only: type one that repeats, such as “cat dog sun cat dog sun”.`));
      return;
    }
    box.replaceChildren(
      heatMap({
        title: `Attention to ${choice.selectedOptions[0].textContent}`,
        values,
        rows: answer.paths.map((path) => path.replace(/\/(attn\/)?weights$/, "")),
        columns: values[0].map((_, h) => String(h)),
        column_title: "head",
        row_title: "",
        signed: false,
        low: 0,
        high: 1,
        pick: (i, j) => update({ path: answer.paths[i], head: j }),
      }),
    );
  };
  choice.addEventListener("change", draw);
  draw();
  return card("What kind of heads", [el("label", { class: "inline" }, "Share of attention on ", choice), box], {
    name: "heads",
    note: "A click shows the head.",
    code: () => context.python(`scores = sonde.tools.attention_heads(f, ${answer.paths.map((path) => JSON.stringify(path)).join(", ")}${context.card.inside})(*args)`),
  });
}
