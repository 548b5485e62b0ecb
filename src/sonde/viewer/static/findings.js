// What `sonde report` finds in this run, and the source of the functions that made the values.

import { el, findingItem, plural, sourceList } from "/static/shared.js";
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
  const links = { has: (path) => known.has(path), open: (path) => update({ view: "site", path }) };
  const list = el("ul", { class: "findings" }, ...answer.findings.map((finding) => findingItem(finding, links)));
  context.marks(answer.findings);
  const own = context.sites.find((site) => site.path === current().path);
  const [ownFile, ownLine] = own?.source ? own.source.split(/:(?=\d+$)/) : [];
  const isOwn = (f, number) => f.place.split(":")[0] === ownFile && String(number) === ownLine;
  const hasOwn = (f) => f.lines.some(([number]) => isOwn(f, number));
  const functions = [...answer.source].sort((a, b) => Number(hasOwn(b)) - Number(hasOwn(a)));
  return el(
    "div",
    { class: "stack" },
    el("h2", {}, "Findings"),
    answer.findings.length ? list : el("p", { class: "card fine" }, `Nothing wrong was found. ${answer.checked}`),
    answer.failure ? el("pre", {}, answer.failure.message) : null,
    el("h2", {}, "Source"),
    el("p", { class: "quiet" }, `${plural(functions.length, "function")} with sites; beside each line are the values made on it.`),
    ...sourceList(functions, isOwn),
  );
}
