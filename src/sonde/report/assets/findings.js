// What was found, and the source with what was made on each line: parts of the report and of the live page.

function badge(severity) {
  return el("span", { class: `badge ${severity}` }, `${MARKS[severity]} ${severity}`);
}

//   has(path): whether there is such a site;  open(path): shows it
function findingItem(finding, { has, open }) {
  const link = (path, text) => el("button", { class: "link", type: "button", on: { click: () => open(path) } }, text);
  const where = el("div", { class: "where" });
  if (finding.path && has(finding.path)) where.append(link(finding.path, `Show ${finding.path}`));
  if (finding.source) where.append(el("span", { class: "quiet mono" }, finding.source));
  const others = finding.also.filter(has);
  if (others.length) {
    const list = el("details", {}, el("summary", {}, `${plural(others.length, "more site")}`));
    list.addEventListener("toggle", () => {
      if (list.open && list.childElementCount === 1) list.append(...others.map((path) => el("div", {}, link(path, path))));
    });
    where.append(list);
  }
  return el(
    "li",
    { class: `card finding ${finding.severity}` },
    badge(finding.severity),
    el("p", {}, finding.text),
    finding.help ? el("p", { class: "help" }, finding.help) : null,
    where.childElementCount ? where : null,
  );
}

// The functions line by line.  isOwn(f, number): whether the line made the site that is shown
function sourceList(functions, isOwn = () => false) {
  const line = (f, [number, code, margin]) =>
    el(
      "tr",
      { class: number === f.worst ? "worst" : isOwn(f, number) ? "own" : null },
      el("td", { class: "quiet" }, String(number)),
      el("td", {}, el("code", {}, code)),
      el("td", { class: "quiet" }, margin),
    );
  return functions.map((f, i) =>
    el(
      "details",
      { class: "card", open: i === 0 },
      el("summary", {}, `${f.name}, ${f.place}`),
      el("div", { class: "scroll", tabindex: "0" }, el("table", { class: "source" }, ...f.lines.map((entry) => line(f, entry)))),
    ),
  );
}
