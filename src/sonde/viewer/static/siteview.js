// One site: statistics, histogram, and its value as a picture; its gradient; what changed. A click on a cell chooses
// what the next change is about.

import { colorScale, el, histogram, num, paint, percent, plural, scaleLegend, show, tip } from "/static/shared.js";
import { card } from "/static/exporting.js";
import { oneOf, rangeOf, unpacked } from "/static/numbers.js";
import { activeChanges, addChange, current, explained, runOf, update } from "/static/state.js";
import { visible } from "/static/text.js";

const WIDEST = 900;

// Python that makes the numbers of the picture.
function codeOf({ path, call, leaf }, inside) {
  const name = JSON.stringify(path);
  const part = (text) => (leaf === null ? text : `jax.tree.leaves(${text})[${leaf}]`);
  const value = (of, program) => `_, records = sonde.capture(${program}, ${name}${inside})(*args)\n${of} = ${part(`records[${name}].values[${call}]`)}`;
  if (current().show === "value") return value("value", "f");
  if (current().show === "change") return `${value("before", "unchanged")}\n${value("after", "f")}\nchange = after - before`;
  return `_, records = sonde.tools.site_gradients(f, ${name}, metric=metric${inside})(*args)\ngradient = ${part(`records[${name}].grads[${call}]`)}`;
}

// What every question about the shown site says.
export function siteOf(state) {
  return { ...runOf(state), path: state.path, call: state.call, part: state.part };
}

export async function siteView(context) {
  const { connection, tokens } = context;
  const state = current();
  const shown = state.show === "gradient" ? explained() : null;
  const place = siteOf(state);
  const facts = await connection.ask("site", { ...place, explained: shown });
  const box = el("div", { class: "stack" });
  const entries = context.sites.filter((site) => site.path === state.path);
  const choices = [["value", "Value"], ["gradient", "Gradient"]];
  if (activeChanges().length) choices.push(["change", "What changed"]);
  box.append(
    el(
      "div",
      { class: "section-head" },
      el("h2", { id: "site-title", class: "mono" }, state.path),
      el(
        "div",
        { class: "switch", role: "group", "aria-label": "What is shown" },
        ...choices.map(([value, text]) =>
          el(
            "button",
            { class: `tool${state.show === value ? " on" : ""}`, type: "button", "aria-pressed": String(state.show === value), on: { click: () => update({ show: value }) } },
            text,
          ),
        ),
      ),
    ),
    factLine(facts, entries, context),
  );
  if (state.show === "gradient") box.append(el("p", { class: "quiet" }, context.explainedText()));
  if (!facts.ran[0]) {
    box.append(el("p", { class: "card quiet" }, "There is no value: in this run the branch of this site was not taken, or its loop ran no time."));
    return box;
  }
  box.append(await pictureCard(context, facts, place, shown), statisticsCard(facts, context));
  return box;
}

function factLine(facts, entries, context) {
  const line = el("div", { class: "facts" });
  const fact = (name, value) => line.append(el("span", {}, `${name} `, el("b", { class: "mono" }, value)));
  fact("array", `${facts.dtype}[${facts.shape.map((n, i) => `${facts.axes[i] ?? ""} ${n}`.trim()).join(", ")}]`);
  if (facts.source) fact("line", facts.source);
  const [ran, of] = facts.ran;
  if (ran < of) fact("computed in", `${ran} of ${of} iterations`);
  if (facts.iterations) fact("iteration", `the last of ${facts.iterations}`);
  if (facts.dtype.startsWith("complex")) fact("drawn is", "the magnitude");
  if (facts.moved !== null) fact("moved by", percent(num(facts.moved)));
  if (entries.length > 1) {
    const { call, part } = current();
    const select = el(
      "select",
      { "aria-label": "Which call and array" },
      ...entries.map((entry, i) => el("option", { value: i }, placeOf(entry, entries))),
    );
    select.value = entries.findIndex((entry) => entry.call === call && entry.part === part);
    select.addEventListener("change", () => {
      const entry = entries[Number(select.value)];
      update({ call: entry.call, part: entry.part });
    });
    line.append(select);
  }
  const family = context.familyOf(facts.path);
  if (family.length > 1) {
    const at = family.indexOf(facts.path);
    const slider = el("input", { type: "range", min: 0, max: family.length - 1, value: at, "aria-label": "Layer" });
    slider.addEventListener("change", () => update({ path: family[Number(slider.value)] }));
    line.append(el("label", { class: "inline layer" }, "Layer ", slider, el("output", {}, `${at} of ${family.length}`)));
  }
  return line;
}

// The number of the call, and of the array, as far as they tell the arrays of a site apart.
function placeOf(entry, entries) {
  const differ = (name) => entries.some((other) => other[name] !== entry[name]);
  return ["call", "part"].filter(differ).map((name) => `${name === "part" ? "array" : "call"} ${entry[name]}`).join(", ");
}

function statisticsCard(facts, context) {
  const s = facts.statistics;
  const stats = el("dl", { class: "stats" });
  const add = (name, value, bad) => stats.append(el("div", {}, el("dt", {}, name), el("dd", { class: bad ? "bad" : null }, value)));
  for (const name of ["mean", "std", "min", "max", "norm"]) add(name, show(s[name]));
  add("zeros", s.size ? percent(s.zeros / s.size) : "–");
  if (s.size && s.units > 1) add("dead units", `${s.dead} of ${s.units}`);
  add("not finite", s.nonfinite ? plural(s.nonfinite, "element") : "none", s.nonfinite > 0);
  const body = [stats];
  if (facts.histogram) body.push(histogram(facts.histogram, context.edges, `Histogram of ${facts.path}`));
  const path = JSON.stringify(facts.path);
  return card("Distribution", body, {
    name: `${facts.path}-histogram`,
    code: () => context.python(current().show === "gradient"
      ? `${codeOf(facts, context.card.inside)}\nprint(gradient.mean(), gradient.std(), gradient.min(), gradient.max())`
      : `print(sonde.tools.summarize(f, ${path}${context.card.inside})(*args))`),
  });
}

async function pictureCard(context, facts, place, shown) {
  const { rows, columns, each } = facts.drawn;
  const chosen = { down: rows, across: columns, each: each ?? -1, index: facts.shape.map(() => 0) };
  const selection = new Map(); // by axis, the index that a click chose
  const body = el("div", {});
  const actions = el("div", { class: "actions" });
  const state = current();

  let asked = 0; // the number of the latest question: older answers are not drawn
  const draw = async () => {
    const number = ++asked;
    const answer = await context.connection.ask("picture", {
      ...place,
      rows: chosen.down,
      columns: chosen.across,
      each: chosen.each >= 0 ? chosen.each : null,
      index: chosen.index,
      explained: shown,
      against: state.show === "change",
    });
    if (number !== asked) return;
    const values = unpacked(answer.values);
    const { low, high, bad } = rangeOf(values.data);
    const scale = colorScale(low, high, low < 0 || state.show !== "value");
    body.replaceChildren(
      axisChoice(facts, chosen, draw),
      scaleLegend(scale, bad > 0, facts.ran[0] < facts.ran[1] ? "not computed, or not finite" : "not finite"),
      el("div", { class: "maps" }, ...maps(values, scale, facts, chosen, context, pick)),
    );
    const [rows, columns] = values.shape.slice(-2);
    const [allRows, allColumns] = answer.of.slice(-2);
    if (rows < allRows || columns < allColumns)
      body.append(el("p", { class: "quiet" }, `The corner of ${allRows} × ${allColumns}.`));
  };

  const pick = (at) => {
    selection.clear();
    for (const [axis, index] of at) if (axis >= facts.lead) selection.set(axis, index); // loops and maps are changed as a whole
    drawActions();
  };

  const drawActions = () => actions.replaceChildren(changeTools(context, facts, selection));
  await draw();
  drawActions();
  const path = JSON.stringify(facts.path);
  return card({ value: "Value", gradient: "Gradient", change: "What changed" }[state.show], [body, actions], {
    name: facts.path,
    code: () => context.python(codeOf(facts, context.card.inside)),
  });
}

function axisChoice(facts, chosen, draw) {
  if (facts.shape.length < 2) return el("div", {});
  const names = facts.axes.map((name, i) => `${name} (${facts.shape[i]})`);
  const choose = (label, key, none) => {
    const select = el(
      "select",
      { "aria-label": label },
      none ? el("option", { value: -1 }, "–") : null,
      ...names.map((name, i) => el("option", { value: i }, name)),
    );
    select.value = chosen[key];
    select.addEventListener("change", () => {
      const value = Number(select.value);
      const taken = Object.entries(chosen).find(([k, v]) => k !== key && k !== "index" && v === value);
      if (taken) chosen[taken[0]] = chosen[key];
      chosen[key] = value;
      draw();
    });
    return el("label", { class: "inline" }, label, select);
  };
  const row = el("div", { class: "axes" }, choose("Down", "down"), choose("Across", "across"), choose("Each", "each", true));
  facts.shape.forEach((size, axis) => {
    if (size < 2 || [chosen.down, chosen.across, chosen.each].includes(axis)) return;
    const input = el("input", { type: "number", min: 0, max: size - 1, value: chosen.index[axis], "aria-label": facts.axes[axis] });
    input.addEventListener("change", () => {
      chosen.index[axis] = Math.max(0, Math.min(size - 1, Number(input.value) || 0));
      draw();
    });
    row.append(el("label", { class: "inline" }, facts.axes[axis], input));
  });
  return row;
}

function maps(values, scale, facts, chosen, context, pick) {
  const [rows, columns] = values.shape.slice(-2);
  const several = values.shape.length > 2 ? values.shape[0] : 1;
  const name = (axis, i) => {
    if (axis < 0) return "";
    const isToken = ["length", "keys"].includes(facts.axes[axis]) && context.tokens.length === facts.shape[axis];
    return `${oneOf(facts.axes[axis])} ${i}${isToken ? ` ${JSON.stringify(context.tokens[i].text)}` : ""}`;
  };
  const available = Math.min(WIDEST, context.width());
  const unit = Math.max(1, Math.min(22, Math.floor((several > 1 ? Math.min(190, available) : available - 90) / Math.max(columns, several > 1 ? rows : 1))));
  const tall = Math.max(1, Math.min(22, Math.max(unit, several > 1 ? Math.floor(120 / rows) : Math.min(18, Math.floor(420 / rows)))));
  return Array.from({ length: several }, (_, k) => {
    const at = (i, j) => values.data[(k * rows + i) * columns + j];
    const label = several > 1 ? name(chosen.each, k) : facts.path;
    const canvas = paint(el("canvas", { class: "map", role: "img", tabindex: "0", "aria-label": `${label}, ${rows} rows and ${columns} columns` }), rows, columns, at, scale);
    canvas.style.width = `${Math.min(columns * unit, available)}px`;
    canvas.style.height = `${rows * tall}px`;
    const where = (event) => {
      const bounds = canvas.getBoundingClientRect();
      return [
        Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - bounds.top) / bounds.height) * rows))),
        Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - bounds.left) / bounds.width) * columns))),
      ];
    };
    canvas.addEventListener("pointermove", (event) => {
      const [i, j] = where(event);
      tip.show(event, [several > 1 ? label : "", name(chosen.down, i), name(chosen.across, j), show(at(i, j))].filter(Boolean).join("\n"));
    });
    canvas.addEventListener("pointerleave", tip.hide);
    canvas.addEventListener("click", (event) => {
      const [i, j] = where(event);
      pick([[chosen.each, k], [chosen.down, i], [chosen.across, j]]);
    });
    canvas.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      pick([[chosen.each, several > 1 ? k : -1]].filter(([axis]) => axis >= 0));
    });
    const labels = several === 1 && chosen.down >= 0 && facts.axes[chosen.down] === "length" && context.tokens.length === rows && tall >= 11
      ? el("div", { class: "row-names mono", "aria-hidden": "true" }, ...context.tokens.map((token) => rowName(token, tall)))
      : null;
    return el("div", { class: labels ? "named-map" : null }, several > 1 ? el("span", {}, label) : null, labels, canvas);
  });
}

function rowName(token, height) {
  const line = el("div", {}, visible(token.text));
  line.style.height = `${height}px`;
  line.style.lineHeight = `${height}px`;
  return line;
}

// The buttons that make a change out of what was clicked: each axis can be taken in or left out.
function changeTools(context, facts, selection) {
  const state = current();
  const box = el("div", { class: "change-tools" });
  const parts = el("div", { class: "picked" });
  for (const [axis, index] of selection) {
    if (facts.axes[axis] === "batch") continue;
    const size = facts.shape[axis];
    const input = el("input", { type: "number", min: 0, max: size - 1, value: index, "aria-label": `Which ${facts.axes[axis]}` });
    input.addEventListener("change", () => selection.set(axis, Math.max(0, Math.min(size - 1, Number(input.value) || 0))));
    const remove = el("button", { class: "tool", type: "button", "aria-label": `All of ${facts.axes[axis]}` }, "×");
    const chip = el("span", { class: "chip" }, `${oneOf(facts.axes[axis])} `, input, remove);
    remove.addEventListener("click", () => {
      selection.delete(axis);
      chip.remove();
    });
    parts.append(chip);
  }
  const factor = el("input", { type: "number", class: "factor", value: 2, step: "0.5", "aria-label": "Factor" });
  const other = el("input", { type: "text", class: "other", value: state.other, placeholder: "another prompt", "aria-label": "Another prompt, for patches and steering" });
  other.addEventListener("change", () => update({ other: other.value }, { replace: true }));
  const make = (kind, more = {}) => {
    const picked = Object.fromEntries([...selection].filter(([axis]) => facts.axes[axis] !== "batch").map(([axis, i]) => [axis, [i]]));
    addChange({ kind, path: facts.path, call: facts.call, part: facts.part, chosen: picked, ...more });
  };
  const button = (text, kind, title, more = () => ({})) => {
    const reason = facts.impossible[kind];
    return el("button", { class: "button", type: "button", disabled: Boolean(reason), title: reason ? `Not possible here: ${reason}` : title, on: { click: () => make(kind, more()) } }, text);
  };
  const scaled = () => ({ factor: Number(factor.value) });
  box.append(
    el("p", { class: "quiet" }, selection.size ? "Change what was clicked:" : "Change the whole value, or click a part of the picture first:"),
    parts,
    el(
      "div",
      { class: "buttons" },
      button("Zero", "ablate", "Put zeros there"),
      button("Mean", "mean", "Put the mean over all axes but that of the units there"),
      el("span", { class: "group" }, button("Scale by", "scale", "Multiply by the factor", scaled), factor),
      button("Scale gradient", "gradient", "Multiply the gradient by the factor", scaled),
    ),
  );
  if (context.card.prompt !== null) {
    const patch = button("Patch", "patch", "Take the value of the other prompt", () => ({ prompt: other.value }));
    const steer = button("Steer", "steer", "Add the difference to the other prompt, times the factor", () => ({ prompt: other.value, ...scaled() }));
    const impossible = [patch, steer].map((one) => one.disabled);
    const fill = () => [patch, steer].forEach((one, i) => (one.disabled = impossible[i] || !other.value));
    other.addEventListener("input", fill);
    fill();
    box.append(el("div", { class: "buttons" }, other, patch, steer));
  }
  return box;
}
