// The list of changes: switched on and off, removed, undone, copied as Python; and what they did to the output.

import { el, plural } from "/static/shared.js";
import { copyButton } from "/static/exporting.js";
import { current, putChanges as put, redo, undo } from "/static/state.js";

export function changesList({ connection }, texts) {
  const { changes, subject, prompt } = current();
  const rows = changes.map((change, i) => {
    const text = texts[i] ?? change.path;
    const on = el("input", { type: "checkbox", "aria-label": `On: ${text}` });
    on.checked = change.on !== false;
    on.addEventListener("change", () => put(changes.map((c, j) => (j === i ? { ...c, on: on.checked } : c))));
    const factor = ["scale", "add", "steer", "gradient"].includes(change.kind)
      ? el("input", { type: "number", class: "factor", step: "0.5", "aria-label": `Factor of ${text}`, value: change.factor })
      : null;
    if (factor) factor.addEventListener("change", () => put(changes.map((c, j) => (j === i ? { ...c, factor: Number(factor.value) } : c))));
    return el(
      "li",
      { class: change.on === false ? "unused" : null },
      on,
      el("span", { class: "mono" }, text),
      factor,
      el(
        "button",
        { class: "tool", type: "button", "aria-label": `Remove: ${text}`, on: { click: () => put(changes.filter((_, j) => j !== i)) } },
        "×",
      ),
    );
  });
  const python = copyButton("Python", "Copy the changes as Python", async () => (await connection.ask("python", { subject, prompt, changes })).code);
  const stepper = (text, { possible, act }) => el("button", { class: "tool", type: "button", disabled: !possible(), on: { click: act } }, text);
  return el(
    "div",
    { class: "card changes" },
    el(
      "div",
      { class: "card-head" },
      el("h2", { class: "small" }, plural(changes.length, "change")),
      el(
        "div",
        { class: "tools" },
        stepper("Undo", undo),
        stepper("Redo", redo),
        el("button", { class: "tool", type: "button", on: { click: () => put(changes.map((c) => ({ ...c, on: false }))) } }, "All off"),
        el("button", { class: "tool", type: "button", on: { click: () => put([]) } }, "Clear"),
        python,
      ),
    ),
    el("ul", { class: "change-list" }, ...rows),
  );
}
