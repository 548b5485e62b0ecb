// Two programs on the same input, side by side: the first difference on top, then every value that both have.

import { el, num, plural, show } from "/static/shared.js";
import { card } from "/static/exporting.js";
import { current, update } from "/static/state.js";

const AT_ONCE = 300;

export async function compareView(context) {
  const { subject, prompt } = current();
  const others = context.cards.filter((other) => other.kind === "program" && other.name !== subject).map((other) => other.name);
  const choice = el("select", { "aria-label": "The other program" }, ...others.map((name) => el("option", { value: name }, name)));
  const body = el("div", { class: "stack" });
  const only = el("input", { type: "checkbox", id: "only-different" });
  const draw = async () => {
    body.replaceChildren(el("p", { class: "quiet" }, "Comparing …"));
    const answer = await context.connection.ask("comparison", { subject, prompt, other: choice.value });
    const known = new Set(context.sites.map((site) => site.path));
    const link = (path, text) => (known.has(path) ? el("button", { class: "link mono", type: "button", on: { click: () => update({ view: "site", path }) } }, text) : el("span", { class: "mono" }, text));
    const rows = answer.drifts.filter((drift) => !only.checked || drift.differs);
    const row = (drift) =>
      el(
        "tr",
        { class: drift.differs ? "differs" : null },
        el("td", {}, link(drift.path, drift.place)),
        el("td", { class: "mono" }, drift.second),
        el("td", {}, drift.note || show(drift.rel_norm)),
        el("td", {}, drift.note ? "" : show(drift.max_abs)),
        el("td", {}, drift.differs ? "differs" : "same"),
      );
    const heads = [subject, choice.value, "norm of the difference", "largest", ""];
    const list = (paths, name) => (paths.length ? el("p", { class: "quiet" }, `${plural(paths.length, "site")} only in ${name}: ${paths.slice(0, 8).join(", ")}${paths.length > 8 ? ", …" : ""}`) : null);
    body.replaceChildren(
      answer.first
        ? el("div", { class: "card finding problem" }, el("span", { class: "badge problem" }, "● first difference"), el("p", {}, answer.first.text), answer.parting ? el("p", { class: "help" }, answer.parting) : null, el("div", { class: "where" }, link(answer.first.path, `Show ${answer.first.path}`)))
        : el("p", { class: "card fine" }, `No difference beyond rounding in the ${plural(answer.drifts.length, "value")} that both programs have.`),
      ...[list(answer.only_first, subject), list(answer.only_second, choice.value)].filter(Boolean),
      ...answer.unchecked.map((text) => el("p", { class: "quiet" }, `Not compared: ${text}`)),
      card(
        `${plural(rows.length, "value")}`,
        el("div", { class: "scroll", tabindex: "0" }, el("table", { class: "compared" }, el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, ...rows.slice(0, AT_ONCE).map(row)))),
        { name: "compare", code: answer.code, note: rows.length > AT_ONCE ? `The first ${AT_ONCE} are listed.` : "" },
      ),
    );
    return num(answer.drifts.length);
  };
  choice.addEventListener("change", draw);
  only.addEventListener("change", draw);
  draw().catch((error) => body.replaceChildren(el("p", { class: "card quiet" }, error.message)));
  return el(
    "div",
    { class: "stack" },
    el("div", { class: "section-head" }, el("h2", {}, "Compare"), el("div", { class: "switch" }, el("label", { class: "inline" }, "With ", choice), el("label", { class: "inline" }, only, "only differences"))),
    body,
  );
}
