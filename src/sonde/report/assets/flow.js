// Flow: the scale of values and gradients over depth. A family is one site of numbered layers, such as blocks/*/mlp.

function setUpFlow({ section, choice, body, data, select }) {
  const arrays = data.sites
    .map((site, index) => ({ site, index }))
    .filter(({ site }) => isFloat(site) && (site.value || site.gradient));
  if (arrays.length < 2) return () => {};
  section.hidden = false;
  const views = [{ name: "all sites, in program order", members: arrays.map(({ index }) => index) }, ...data.families];
  choice.append(...views.map((view, i) => el("option", { value: i }, view.name)));
  choice.value = firstView(views, arrays.length);
  const draw = () => {
    const view = views[Number(choice.value) || 0];
    body.replaceChildren(flowFigure(view, data, select));
  };
  choice.addEventListener("change", draw);
  draw();
  return draw;
}

// Many sites in a row make a zigzag line: for a deep model, start with the outputs of its layers.
function firstView(views, sites) {
  if (sites <= 40 || views.length === 1) return 0;
  const outs = views.filter((view) => view.name.endsWith("/out")).sort((a, b) => a.name.length - b.name.length);
  return outs.length ? views.indexOf(outs[0]) : 1;
}

function isFloat(site) {
  return /^(b?float|complex)/.test(site.dtype);
}

function flowFigure(view, data, select) {
  const members = view.members.map((i) => data.sites[i]);
  const labels = members.map((site) => (site.part ? `${site.path}.${site.part}` : site.path));
  const lines = [];
  const line = (name, color, key, dash) => {
    if (!members.some((site) => site[key])) return;
    lines.push({
      name,
      color,
      dash,
      y: members.map((site) => (site[key] ? num(site[key].rms) : NaN)),
      bad: members.map((site) => Boolean(site[key] && site[key].nonfinite)),
    });
  };
  line("value rms", "var(--value)", "value", false);
  line("gradient rms", "var(--gradient)", "gradient", true);
  const chart = lineChart({
    lines,
    labels,
    log: true,
    height: 250,
    ticks: [
      { at: 0, text: folded(labels[0], 48) },
      ...(labels.length > 1 ? [{ at: labels.length - 1, text: folded(labels[labels.length - 1], 48) }] : []),
    ],
    name: `Scale of values and gradients over ${view.name}: ${plural(members.length, "site")}`,
    pick: (i) => select(members[i].path),
  });
  const table = el("details", {}, el("summary", {}, "The same as a table"));
  table.addEventListener("toggle", () => {
    if (table.open && table.childElementCount === 1) table.append(flowTable(members, labels, select));
  });
  const gradients = lines.length > 1 ? " Gradients come back from right to left." : "";
  return el(
    "div",
    { class: "card" },
    figure(
      `The root mean square at each site on a logarithmic axis, first site on the left: a steady slope means that the scale vanishes or explodes.${gradients} A cross marks what is not finite; a click shows the site.`,
      lineLegend(lines),
      chart,
    ),
    table,
  );
}

function flowTable(members, labels, select) {
  const rows = members.map((site, i) =>
    el(
      "tr",
      {},
      el("td", {}, el("button", { class: "link", type: "button", on: { click: () => select(site.path) } }, labels[i])),
      ...["value", "gradient"].flatMap((key) =>
        ["rms", "min", "max"].map((name) => el("td", {}, site[key] ? show(site[key][name]) : "–")),
      ),
    ),
  );
  const heads = ["site", "value rms", "min", "max", "gradient rms", "min", "max"];
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, ...heads.map((h) => el("th", { scope: "col" }, h)))),
      el("tbody", {}, ...rows),
    ),
  );
}
