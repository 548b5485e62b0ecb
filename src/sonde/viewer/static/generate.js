// Text that grows token by token, without and with the changes.

import { el } from "/static/shared.js";
import { activeChanges, current, runOf } from "/static/state.js";

export async function generateView(context) {
  const { prompt } = current();
  const count = el("input", { type: "number", min: 1, max: 512, value: 30, id: "count" });
  const temperature = el("input", { type: "number", min: 0, max: 5, step: 0.1, value: 0, id: "temperature" });
  const seed = el("input", { type: "number", min: 0, value: 0, id: "seed" });
  const start = el("button", { class: "button main", type: "button" }, "Generate");
  const cancel = el("button", { class: "button", type: "button", hidden: true }, "Cancel");
  const columns = el("div", { class: "sides" });
  const line = el("span", { class: "quiet", "aria-live": "polite" });
  const text = prompt ?? context.card.prompt;

  async function column(title, changes, signal) {
    const grown = el("span", { class: "grown" });
    columns.append(el("div", { class: "card" }, el("h3", {}, title), el("p", { class: "generated" }, text, grown)));
    const pieces = [];
    const answer = await context.connection.ask(
      "generate",
      { ...runOf(), changes, tokens: Number(count.value), temperature: Number(temperature.value), seed: Number(seed.value) },
      {
        signal,
        news: ({ text: piece }) => {
          pieces.push(piece);
          grown.textContent = pieces.join("");
        },
      },
    );
    if (answer) grown.textContent = answer.text;
    return answer;
  }

  start.addEventListener("click", async () => {
    const stop = new AbortController();
    cancel.onclick = () => stop.abort();
    [start.disabled, cancel.hidden] = [true, false];
    columns.replaceChildren();
    line.textContent = "Generating …";
    try {
      let answer = await column("Without changes", [], stop.signal);
      if (answer && activeChanges().length) answer = await column("With the changes", activeChanges(), stop.signal);
      line.textContent = answer ? "" : "Cancelled.";
    } catch (error) {
      line.textContent = error.message;
    }
    [start.disabled, cancel.hidden] = [false, true];
  });
  const labeled = (name, control) => el("label", { class: "inline" }, name, control);
  return el(
    "div",
    { class: "stack" },
    el("h2", {}, "Generate"),
    el(
      "div",
      { class: "card form" },
      labeled("Tokens ", count),
      labeled("Temperature ", temperature),
      labeled("Seed ", seed),
      el("div", { class: "buttons" }, start, cancel, line),
    ),
    columns,
  );
}
