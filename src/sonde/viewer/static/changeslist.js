// The list of changes: switched on and off, removed, undone, copied as Python; and what they did to the output.

import { el, plural } from "/static/shared.js";
import { copyText } from "/static/exporting.js";
import { current, update } from "/static/state.js";

export function addChange(change) {
  update({ changes: [...current().changes, { on: true, ...change }] });
}

export function changesList(connection, texts) {
  const { changes, subject, prompt } = current();
  const put = (next) => update({ changes: next });
  const rows = changes.map((change, i) => {
    const text = texts[i] ?? change.path;
    const on = el("input", { type: "checkbox", "aria-label": `On: ${text}` });
    on.checked = change.on !== false;
    on.addEventListener("change", () => put(changes.map((c, j) => (j === i ? { ...c, on: on.checked } : c))));
    const factor = ["scale", "steer", "gradient"].includes(change.kind)
      ? el("input", { type: "number", class: "factor", step: "0.5", "aria-label": `Factor of ${text}`, value: change.factor })
      : null;
    if (factor) factor.addEventListener("change", () => put(changes.map((c, j) => (j === i ? { ...c, factor: Number(factor.value) } : c))));
    return el(
      "li",
      { class: change.off ? "off" : null },
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
  const python = el(
    "button",
    {
      class: "tool",
      type: "button",
      on: {
        click: async () => {
          const { code } = await connection.ask("python", { subject, prompt, changes });
          await copyText(code);
          python.textContent = "Copied";
          setTimeout(() => (python.textContent = "Python"), 1200);
        },
      },
    },
    "Python",
  );
  return el(
    "div",
    { class: "card changes" },
    el(
      "div",
      { class: "card-head" },
      el("h3", {}, plural(changes.length, "change")),
      el(
        "div",
        { class: "tools" },
        el("button", { class: "tool", type: "button", on: { click: () => history.back() } }, "Undo"),
        el("button", { class: "tool", type: "button", on: { click: () => history.forward() } }, "Redo"),
        el("button", { class: "tool", type: "button", on: { click: () => put(changes.map((c) => ({ ...c, on: false }))) } }, "All off"),
        el("button", { class: "tool", type: "button", on: { click: () => put([]) } }, "Clear"),
        python,
      ),
    ),
    el("ul", { class: "change-list" }, ...rows),
  );
}
