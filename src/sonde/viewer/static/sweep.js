// A sweep: every head or layer is changed, one at a time, while a bar shows how far it is.

import { el, heatMap, num, show } from "/static/shared.js";
import { card } from "/static/exporting.js";
import { oneOf, rowsOf, unpacked } from "/static/numbers.js";
import { addChange, current, explained, runOf, update } from "/static/state.js";

const KINDS = [["ablate", "zero"], ["mean", "its mean"], ["patch", "its value for the other prompt"]];
let last = null; // the last result stays, with what it was about

export async function sweepView(context) {
  const state = current();
  const families = context.families();
  const first = families.includes(context.family(state.path)) ? context.family(state.path) : (families.find((name) => name.endsWith("/heads")) ?? families[0]);
  if (!families.length) return el("p", { class: "card quiet" }, "There are no families of numbered layers to sweep over.");
  const option = ([value, text]) => el("option", { value }, text);
  const family = el("select", { id: "sweep-family" }, ...families.map((name) => option([name, name])));
  family.value = first;
  const kind = el("select", { id: "sweep-kind" }, ...KINDS.filter(([value]) => value !== "patch" || context.card.prompt !== null).map(option));
  const axis = el("select", { id: "sweep-axis" });
  const other = el("input", { type: "text", class: "other", value: state.other, placeholder: "another prompt", "aria-label": "The other prompt" });
  other.addEventListener("change", () => update({ other: other.value }, { replace: true }));
  const site = () => context.sites.find((entry) => context.family(entry.path) === family.value);
  const fill = () => {
    const axes = site().axes.map((name, i) => [i, `each ${oneOf(name)} (${site().shape[i]})`]).filter(([i]) => i >= site().lead && site().axes[i] !== "batch" && site().shape[i] <= 512);
    axis.replaceChildren(...[["", "the whole value"], ...axes].map(option));
    const heads = site().axes.indexOf("heads");
    axis.value = heads >= 0 ? String(heads) : "";
  };
  family.addEventListener("change", fill);
  const fillOther = () => (other.hidden = kind.value !== "patch");
  kind.addEventListener("change", fillOther);
  fillOther();
  fill();
  const bar = el("progress", { max: 1, value: 0, "aria-label": "Progress of the sweep", hidden: true });
  const line = el("span", { class: "quiet", "aria-live": "polite" });
  const start = el("button", { class: "button main", type: "button" }, "Start");
  const cancel = el("button", { class: "button", type: "button", hidden: true }, "Cancel");
  const result = el("div", { class: "stack" });
  start.addEventListener("click", async () => {
    const stop = new AbortController();
    cancel.onclick = () => stop.abort();
    [start.disabled, cancel.hidden, bar.hidden] = [true, false, false];
    line.textContent = "";
    const question = {
      ...runOf(),
      path: site().path,
      kind: kind.value,
      axis: axis.value === "" ? null : Number(axis.value),
      other: other.value,
      explained: explained(),
    };
    try {
      const answer = await context.connection.ask("sweep", question, {
        signal: stop.signal,
        news: ({ done, total, text }) => {
          bar.value = done / total;
          line.textContent = `${done} of ${total}: ${text}`;
        },
      });
      line.textContent = answer ? "" : "Cancelled.";
      if (answer) {
        last = { answer, question, about: context.explainedText() };
        draw();
      }
    } catch (error) {
      line.textContent = error.message;
    }
    [start.disabled, cancel.hidden, bar.hidden] = [false, true, true];
  });

  function draw() {
    if (!last) return;
    const { answer, question, about } = last;
    const base = num(answer.base);
    const moved = rowsOf(unpacked(answer.values)).map((row) => row.map((x) => x - base));
    const name = answer.axis ?? "";
    const chosen = (i, j) => ({
      kind: question.kind,
      path: answer.layers[i],
      call: 0,
      chosen: question.axis === null ? {} : { [question.axis]: [j] },
      prompt: question.other,
    });
    const flat = moved.flatMap((row, i) => row.map((value, j) => ({ value, i, j }))).sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    const list = el(
      "ol",
      { class: "best" },
      ...flat.slice(0, 6).map(({ value, i, j }) =>
        el(
          "li",
          {},
          el("span", { class: "mono" }, `${answer.layers[i]}${question.axis === null ? "" : `, ${oneOf(name)} ${j}`}`),
          el("span", { class: "share" }, show(value)),
          el("button", { class: "tool", type: "button", on: { click: () => addChange(chosen(i, j)) } }, "Make this change"),
        ),
      ),
    );
    result.replaceChildren(
      card(`How far the result moves when each ${oneOf(name) || "layer"} becomes ${KINDS.find(([value]) => value === question.kind)[1]}`, [
        heatMap({
          title: "Sweep",
          values: moved,
          rows: answer.layers,
          columns: moved[0].map((_, j) => (["length", "keys"].includes(name) && context.tokens[j] ? context.tokens[j].text : String(j))),
          column_title: oneOf(name),
          row_title: "",
          signed: true,
          pick: (i, j) => addChange(chosen(i, j)),
        }),
        list,
      ], { name: "sweep", code: () => context.python(answer.code), note: `${about} Unchanged it is ${show(base)}. A click makes that change.` }),
    );
  }
  draw();
  const labeled = (text, control) => el("label", { class: "inline" }, text, control);
  return el(
    "div",
    { class: "stack" },
    el("h2", {}, "Which one matters?"),
    el("p", { class: "quiet" }, context.explainedText()),
    el(
      "div",
      { class: "card form" },
      labeled("Change ", family),
      labeled(" over ", axis),
      labeled(" to ", kind),
      context.card.prompt !== null ? other : null,
      el("div", { class: "buttons" }, start, cancel, bar, line),
    ),
    result,
  );
}
