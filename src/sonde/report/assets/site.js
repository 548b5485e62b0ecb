// Everything about one site: statistics, histograms, how it changes over calls and iterations, pictures.

const PARTS_AT_ONCE = 6;

function siteDetail(path, arrays, pictures, data) {
  const parts = arrays.map(
    (site) => () =>
      partDetail(
        site,
        arrays.length > 1,
        pictures.filter((p) => p.part === site.part),
        data,
      ),
  );
  const shown = parts.slice(0, PARTS_AT_ONCE).map((make) => make());
  const rest = parts.slice(PARTS_AT_ONCE);
  const box = el("div", {}, ...shown);
  if (rest.length) {
    const more = el("button", { class: "button", type: "button" }, `Show ${plural(rest.length, "more array")}`);
    more.addEventListener("click", () => {
      const next = rest.splice(0, PARTS_AT_ONCE);
      more.before(...next.map((make) => make()));
      more.textContent = `Show ${plural(rest.length, "more array")}`;
      more.hidden = !rest.length;
    });
    box.append(more);
  }
  return box;
}

function partDetail(site, several, pictures, data) {
  const facts = el("div", { class: "facts" });
  const fact = (name, value, mono) =>
    value && facts.append(el("span", {}, `${name} `, el("b", { class: mono ? "mono" : null }, value)));
  fact("array", site.dtype ? `${site.dtype}[${site.shape.join(", ")}]` : "none", true);
  if (site.value) fact("seen", site.value.steps > 1 ? plural(site.value.steps, "time") : "once");
  fact("line", site.source, true);
  const sides = el("div", { class: "sides" });
  if (site.value) sides.append(sideCard("Value", "var(--value)", site.value, site, data));
  if (site.gradient) sides.append(sideCard("Gradient", "var(--gradient)", site.gradient, site, data));
  if (!site.value && !site.gradient) sides.append(el("p", { class: "card quiet" }, nothing(site)));
  else if (site.unreached)
    sides.append(
      el("p", { class: "card quiet" }, "There is no gradient: the differentiated function does not use this value."),
    );
  const box = el(
    "div",
    { class: "part" },
    several ? el("h3", { class: "mono" }, site.part || "(the array)") : null,
    facts,
    sides,
  );
  const over = seriesFigure(site);
  if (over)
    box.append(
      el(
        "div",
        { class: "card wide" },
        el("h3", {}, `Over ${site.value && site.value.series ? site.value.series.over : site.gradient.series.over}s`),
        over,
      ),
    );
  if (pictures.length)
    box.append(
      el(
        "div",
        { class: "card wide stack" },
        el("h3", {}, { attention: "Attention", features: "Feature maps", matrix: "Values" }[pictures[0].kind]),
        ...picturesShown(pictures, data.tokens),
      ),
    );
  return box;
}

// A few pictures are all shown; of many, such as one for every iteration, a slider chooses.
function picturesShown(pictures, tokens) {
  if (pictures.length <= 2) return pictures.map((picture) => pictureFigure(picture, tokens));
  const box = el("div", {});
  const at = el("output", {});
  const slider = el("input", { type: "range", min: 0, max: pictures.length - 1, value: 0, "aria-label": "Which picture" });
  const draw = () => {
    const picture = pictures[Number(slider.value)];
    at.textContent = when(picture) || "call 0";
    box.replaceChildren(pictureFigure(picture, tokens));
  };
  slider.addEventListener("input", draw);
  draw();
  return [el("label", { class: "inline layer" }, "Shown ", slider, at), box];
}

function nothing(site) {
  if (!site.dtype) return "The value at this site contains no array.";
  if (site.dtype.startsWith("key")) return "Random keys have no numbers to show.";
  return "The site was not reached: its branch was not taken, or its loop did not run.";
}

function sideCard(title, color, side, site, data) {
  const stats = el("dl", { class: "stats" });
  const add = (name, value, bad, why) =>
    stats.append(el("div", { title: why }, el("dt", {}, name), el("dd", { class: bad ? "bad" : null }, value)));
  add("mean", show(side.mean));
  add("std", show(side.std), false, "standard deviation");
  add("rms", show(side.rms), false, "root of the mean square");
  add("min", show(side.min));
  add("max", show(side.max));
  add("norm", show(side.norm), false, "root of the sum of squares");
  add(
    "zeros",
    side.size ? percent(side.zeros / side.size) : "–",
    false,
    `${plural(side.zeros, "element")} of ${side.size} are exactly zero`,
  );
  if (side.units > 1) add("dead units", `${side.dead} of ${side.units}`, false, "zero in every example and position");
  add("not finite", side.nonfinite ? plural(side.nonfinite, "element") : "none", side.nonfinite > 0, "NaN or infinite");
  const card = el(
    "div",
    { class: "card" },
    el("h3", {}, el("span", { class: "swatch", background: color, "aria-hidden": "true" }), title),
    stats,
  );
  if (side.histogram) {
    const label = `Histogram of the ${title.toLowerCase()} at ${site.path}: from ${show(side.min)} to ${show(side.max)}`;
    card.append(
      figure(
        "How many elements lie between one power of two and the next: below zero blue, above orange.",
        histogram(side.histogram, data.edges, label),
      ),
    );
  } else if (!side.size) {
    card.append(el("p", { class: "quiet" }, "The array has no elements."));
  }
  return card;
}

function seriesFigure(site) {
  const lines = [];
  let labels = null;
  for (const [name, color, side] of [
    ["value", "var(--value)", site.value],
    ["gradient", "var(--gradient)", site.gradient],
  ]) {
    if (!side || !side.series) continue;
    const s = side.series;
    labels = labels || s.at;
    lines.push({
      name: `${name} rms`,
      color,
      y: s.rms.map(num),
      bad: s.nonfinite.map((n) => n > 0),
      dash: name === "gradient",
    });
  }
  if (!lines.length) return null;
  const n = lines[0].y.length;
  const first = labels[0];
  const last = labels[labels.length - 1];
  const of = (site.value && site.value.series ? site.value : site.gradient).series.of;
  const thinned = of > n ? ` ${n} of ${of} are drawn.` : "";
  const chart = lineChart({
    lines,
    labels,
    log: true,
    height: 200,
    ticks: [
      { at: 0, text: first },
      { at: n - 1, text: last },
    ],
    name: `Scale of ${site.path} from ${first} to ${last}`,
  });
  return figure(
    `The root mean square, on a logarithmic axis; a cross marks what is not finite.${thinned}`,
    lineLegend(lines),
    chart,
  );
}
