// What `sonde report` finds in this run, and the source of the functions that made the values.

import { MARKS, el, plural } from "/static/shared.js";
import { current, runOf, update } from "/static/state.js";

export async function findingsView(context) {
  const line = el("p", { class: "quiet", "aria-live": "polite" }, "Examining the run …");
  context.show(el("div", { class: "stack" }, el("h2", {}, "Findings and source"), line));
  const answer = await context.connection.ask("findings", runOf(), {
    news: ({ text }) => {
      line.textContent = `${text} …`;
    },
  });
  const known = new Set(context.sites.map((site) => site.path));
  const badge = (severity) => el("span", { class: `badge ${severity}` }, `${MARKS[severity]} ${severity}`);
  const link = (path) => el("button", { class: "link", type: "button", on: { click: () => update({ view: "site", path }) } }, `Show ${path}`);
  const list = el(
    "ul",
    { class: "findings" },
    ...answer.findings.map((finding) =>
      el(
        "li",
        { class: `card finding ${finding.severity}` },
        badge(finding.severity),
        el("p", {}, finding.text),
        finding.help ? el("p", { class: "help" }, finding.help) : null,
        el("div", { class: "where" }, known.has(finding.path) ? link(finding.path) : null, finding.source ? el("span", { class: "quiet mono" }, finding.source) : null),
      ),
    ),
  );
  context.marks(answer.findings);
  const own = context.sites.find((site) => site.path === current().path);
  const isOwn = (f) => own && own.source && f.place.split(":")[0] === own.source.split(":")[0] && f.lines.some(([n]) => String(n) === own.source.split(":").pop());
  const functions = [...answer.source].sort((a, b) => Number(isOwn(b)) - Number(isOwn(a)));
  const row = (f, [number, code, margin]) => {
    const isHere = isOwn(f) && String(number) === own.source.split(":").pop();
    return el(
      "tr",
      { class: number === f.worst ? "worst" : isHere ? "own" : null },
      el("td", { class: "quiet" }, String(number)),
      el("td", {}, el("code", {}, code)),
      el("td", { class: "quiet" }, margin),
    );
  };
  return el(
    "div",
    { class: "stack" },
    el("h2", {}, "Findings"),
    answer.findings.length ? list : el("p", { class: "card fine" }, `Nothing wrong was found. ${answer.checked}`),
    answer.failure ? el("pre", {}, answer.failure.message) : null,
    el("h2", {}, "Source"),
    el("p", { class: "quiet" }, `${plural(functions.length, "function")} with sites; beside each line are the values made on it.`),
    ...functions.map((f, i) =>
      el("details", { class: "card", open: i === 0 }, el("summary", {}, `${f.name}, ${f.place}`), el("div", { class: "scroll", tabindex: "0" }, el("table", { class: "source" }, ...f.lines.map((entry) => row(f, entry))))),
    ),
  );
}
