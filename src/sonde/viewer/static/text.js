// The prompt, its tokens, and what is likely next at the position that is looked at.

import { el, percent, plural, show, tip } from "/static/shared.js";
import { current, update } from "/static/state.js";

const SURE = 0.5; // a probability that is drawn half dark

// How dark a token is drawn: the rarer it was, the darker. One scale for all prompts, so that they can be compared.
function shade(p) {
  if (p === null || !Number.isFinite(p)) return 0;
  return Math.max(0, Math.min(1, -Math.log2(Math.max(p, 1e-6)) / 14));
}

export function visible(text) {
  return text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ /, "·") || "∅";
}

export function promptBox(card, run) {
  const { prompt } = current();
  const area = el("textarea", {
    id: "prompt",
    rows: 2,
    spellcheck: "false",
    "aria-label": "Prompt",
    placeholder: "Type a prompt",
  });
  area.value = prompt ?? card.prompt ?? "";
  const start = () => run(area.value);
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      start();
    }
  });
  const button = el("button", { class: "button main", type: "button", title: "Ctrl+Enter", on: { click: start } }, "Run");
  return el("div", { class: "prompt" }, area, button);
}

export function tokenStrip(reading) {
  const { tokens } = reading;
  const { at } = current();
  const chosen = at < 0 ? tokens.length + at : at;
  const strip = el("div", { class: "tokens", role: "radiogroup", "aria-label": "Tokens: choose a position" });
  const pick = (i, focus) => {
    update({ at: i === tokens.length - 1 ? -1 : i });
    if (focus) document.querySelector(`.token[data-at="${i}"]`)?.focus();
  };
  tokens.forEach((token, i) => {
    const p = token.p === null ? null : Number(token.p);
    const moved = token.was !== null && token.p !== null ? Number(token.p) - Number(token.was) : 0;
    const chance = p === null ? "the first token" : `probability ${percent(p)}`;
    const chip = el(
      "button",
      {
        class: `token${i === chosen ? " chosen" : ""}${Math.abs(moved) > 0.005 ? (moved > 0 ? " up" : " down") : ""}`,
        type: "button",
        role: "radio",
        "aria-checked": String(i === chosen),
        "aria-label": `Position ${i}, ${JSON.stringify(token.text)}, ${chance}`,
        tabindex: i === chosen ? "0" : "-1",
        "data-at": i,
        on: {
          click: () => pick(i, true),
          pointermove: (event) =>
            tip.show(
              event,
              `${i} ${JSON.stringify(token.text)} (${token.id})\n${chance}${moved ? `, was ${percent(Number(token.was))}` : ""}`,
            ),
          pointerleave: tip.hide,
          keydown: (event) => {
            const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
            if (!step) return;
            event.preventDefault();
            pick(Math.max(0, Math.min(tokens.length - 1, i + step)), true);
          },
        },
      },
      visible(token.text),
    );
    chip.style.setProperty("--shade", shade(p));
    strip.append(chip);
  });
  return strip;
}

// What is likely next: a bar for each token; after a change, where the bar was.
export function nextTokens(reading, explain) {
  const { tokens } = reading;
  const { at, token, against } = current();
  const chosen = at < 0 ? tokens.length + at : Math.min(at, tokens.length - 1);
  const position = tokens[chosen];
  if (!position) return el("p", { class: "quiet" }, "There are no tokens.");
  const list = el("ol", { class: "next", "aria-label": `Likely after position ${chosen}` });
  for (const likely of position.next) {
    const p = Number(likely.p);
    const was = likely.was === null ? null : Number(likely.was);
    const isTarget = token === likely.id;
    const isAgainst = against === likely.id;
    const bar = el("span", { class: "bar", "aria-hidden": "true" }, el("i", { width: `${100 * (p || 0)}%` }));
    if (was !== null) {
      const before = el("b", { class: "was" });
      before.style.left = `${100 * was}%`;
      bar.append(before);
    }
    list.append(
      el(
        "li",
        {},
        el("span", { class: "likely mono", title: `token ${likely.id}, logit ${show(likely.logit)}` }, visible(likely.text)),
        bar,
        el("span", { class: "share" }, was === null ? percent(p) : `${percent(was)} → ${percent(p)}`),
        el(
          "button",
          {
            class: `tool${isTarget ? " on" : ""}`,
            type: "button",
            "aria-pressed": String(isTarget),
            "aria-label": `Explain the logit of ${JSON.stringify(likely.text)}`,
            title: "Explain this logit",
            on: { click: () => explain({ token: isTarget ? null : likely.id }) },
          },
          "+",
        ),
        el(
          "button",
          {
            class: `tool${isAgainst ? " on" : ""}`,
            type: "button",
            "aria-pressed": String(isAgainst),
            "aria-label": `Subtract the logit of ${JSON.stringify(likely.text)}`,
            title: "Subtract this logit",
            on: { click: () => explain({ against: isAgainst ? null : likely.id }) },
          },
          "−",
        ),
      ),
    );
  }
  return el(
    "div",
    { class: "nexts" },
    el("h2", { class: "small" }, "Next after ", el("span", { class: "mono" }, visible(position.text)), el("span", { class: "quiet" }, ` position ${chosen}`)),
    list,
  );
}

export function resultLines(lines) {
  return el("ul", { class: "result mono" }, ...lines.map((line) => el("li", {}, line)));
}

export function tokensLegend(count) {
  const swatch = (share) => {
    const box = el("i", { "aria-hidden": "true" });
    box.style.setProperty("--shade", share);
    return box;
  };
  return el(
    "p",
    { class: "quiet token-legend" },
    `${plural(count, "token")}; `,
    swatch(shade(SURE)),
    " expected ",
    swatch(shade(1e-4)),
    " surprising. Click one to look at its position.",
  );
}
