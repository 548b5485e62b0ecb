// Heat maps and image grids: pictures of values, and the matrices that callers add.

function pixels(picture) {
  const text = atob(picture.levels);
  const levels = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) levels[i] = text.charCodeAt(i);
  const [low, high] = [num(picture.low), num(picture.high)];
  const value = (index) => (levels[index] === 255 ? NaN : mixed(low, high, levels[index] / 254));
  return { levels, value, low, high, missing: levels.includes(255) };
}

function when(picture) {
  const parts = [];
  if (picture.call) parts.push(`call ${picture.call}`);
  if (picture.iteration.length) parts.push(`iteration ${picture.iteration.join(", ")}`);
  return parts.join(", ");
}

// The label of a position: with its token, if there is one for each position of the axis.
function placeName(position, length, tokens) {
  return tokens.length === length ? `${position} ${JSON.stringify(tokens[position])}` : `${position}`;
}

// One map: rows by columns of a picture, from an offset on. A click opens it with labels, numbers and code.
function mapCanvas(rows, columns, at, scale, { size, label, describe, open }) {
  const canvas = paint(
    el("canvas", { class: "map", role: "img", tabindex: "0", "aria-label": label }),
    rows,
    columns,
    at,
    scale,
  );
  const unit = Math.max(1, Math.min(size / Math.max(rows, columns), 22));
  canvas.style.width = `${Math.round(columns * unit)}px`;
  canvas.style.maxWidth = "100%";
  canvas.style.aspectRatio = `${columns} / ${rows}`;
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const i = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows)));
    const j = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns)));
    tip.show(event, describe(i, j));
  });
  canvas.addEventListener("pointerleave", tip.hide);
  canvas.addEventListener("click", open);
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      open();
    }
  });
  return canvas;
}

function pictureFigure(picture, tokens) {
  const p = pixels(picture);
  const scale = colorScale(p.low, p.high, p.low < 0 && picture.kind !== "attention");
  const draw = { attention: attentionMaps, features: featureMaps, matrix: matrixMaps }[picture.kind];
  const zoom = el("div", { class: "zoom", "aria-live": "polite" });
  const open = (panel) => {
    const signed = scale.signed;
    zoom.replaceChildren(
      el("h4", {}, panel.title),
      heatMap({ ...panel, signed, low: scale.low, high: scale.high }),
      ...behind(panel, pictureCode(picture, panel.index)),
      el("p", { class: "quiet" }, "Numbers read from a picture are exact to 1/500 of its range; the code prints exact numbers."),
    );
  };
  const { caption, maps } = draw(picture, p, scale, tokens, open);
  const time = when(picture);
  return figure(
    `${time ? `In ${time}. ` : ""}${caption} Click a picture to enlarge it and to see its numbers and code.`,
    Number.isFinite(p.low) ? scaleLegend(scale, p.missing) : el("p", { class: "quiet" }, "No element is finite."),
    el("div", { class: "maps" }, ...maps),
    zoom,
  );
}

// The Python that gets the array of a picture.
function pictureCode(picture, index) {
  const path = JSON.stringify(picture.path);
  const call = picture.call ? `.values[${picture.call}]` : ".value";
  const part = picture.part ? `  # its part ${picture.part}` : "";
  const at = [...picture.iteration, ...index].join(", ");
  return `_, records = sonde.capture(f, ${path})(*args)\nrecords[${path}]${call}${at && !part ? `[${at}]` : ""}${part}`;
}

// The details of a picture: its numbers as a table, and its code.
function behind(panel, code) {
  const found = [];
  if (panel.values) {
    const numbers = el("details", {}, el("summary", {}, "Numbers"));
    numbers.addEventListener("toggle", () => {
      if (numbers.open && numbers.childElementCount === 1) numbers.append(numberTable(panel));
    });
    found.push(numbers);
  }
  if (code) found.push(el("details", {}, el("summary", {}, "Code"), el("pre", {}, code)));
  return found;
}

function numberTable(panel) {
  const name = (names, i) => names[i] ?? String(i);
  const head = panel.values.length ? panel.values[0].map((_, j) => name(panel.columns, j)) : [];
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "numbers" },
      el("thead", {}, el("tr", {}, el("th", {}), ...head.map((h) => el("th", { scope: "col" }, h)))),
      el(
        "tbody",
        {},
        ...panel.values.map((row, i) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, name(panel.rows, i)),
            ...row.map((x) => el("td", {}, Number.isFinite(num(x)) ? show(x) : "not finite")),
          ),
        ),
      ),
    ),
  );
}

function cells(rows, columns, at) {
  return Array.from({ length: rows }, (_, i) => Array.from({ length: columns }, (_, j) => at(i, j)));
}

function attentionMaps(picture, p, scale, tokens, open) {
  const [examples, heads, queries, keys] = picture.shape;
  const whole = picture.of;
  const [allQueries, allKeys] = whole.slice(-2);
  const allHeads = whole.length > 2 ? whole[whole.length - 3] : 1;
  const query = (i) => placeName(i, allQueries, tokens);
  const key = (j) => placeName(j, allKeys, tokens);
  const word = (i, n) => (tokens.length === n ? tokens[i] : String(i));
  const maps = [];
  for (let e = 0; e < examples; e++) {
    for (let h = 0; h < heads; h++) {
      const at = (i, j) => p.value(((e * heads + h) * queries + i) * keys + j);
      const label = `${examples > 1 ? `example ${e}, ` : ""}head ${h}`;
      const canvas = mapCanvas(queries, keys, at, scale, {
        size: heads * examples <= 2 ? 320 : Math.min(heads * examples <= 12 ? 168 : 112, chartWidth() / 2 - 14),
        label: `Attention weights of ${label}`,
        describe: (i, j) => `${label}\nquery ${query(i)}, key ${key(j)}: ${show(at(i, j))}`,
        open: () =>
          open({
            title: `${picture.path}, ${label}`,
            values: cells(queries, keys, at),
            rows: Array.from({ length: queries }, (_, i) => word(i, allQueries)),
            columns: Array.from({ length: keys }, (_, j) => word(j, allKeys)),
            row_title: "query",
            column_title: "key",
            index: [...(whole.length > 3 ? [e] : []), ...(whole.length > 2 ? [h] : [])],
          }),
      });
      maps.push(el("div", {}, el("span", {}, label), canvas));
    }
  }
  const left = allHeads - heads;
  const said = allHeads === 1 ? "" : left ? ` ${heads} of ${allHeads} heads; ${left} are not drawn.` : ` All ${heads} heads.`;
  const cut = allKeys > keys ? ` The first ${keys} of ${allKeys} positions.` : "";
  return {
    maps,
    caption: `Attention weights: a row is a query, a column is a key; brighter means more attention.${said}${cut}`,
  };
}

function featureMaps(picture, p, scale, tokens, open) {
  const [examples, rows, columns, channels] = picture.shape;
  const maps = [];
  for (let e = 0; e < examples; e++) {
    for (let c = 0; c < channels; c++) {
      const at = (i, j) => p.value(((e * rows + i) * columns + j) * channels + c);
      const label = `${examples > 1 ? `example ${e}, ` : ""}channel ${c}`;
      const canvas = mapCanvas(rows, columns, at, scale, {
        size: 96,
        label: `Feature map of ${label}`,
        describe: (i, j) => `${label}\nrow ${i}, column ${j}: ${show(at(i, j))}`,
        open: () =>
          open({
            title: `${picture.path}, ${label}`,
            values: cells(rows, columns, at),
            rows: [],
            columns: [],
            index: ["...", c],
          }),
      });
      maps.push(el("div", {}, el("span", {}, label), canvas));
    }
  }
  const all = picture.of[picture.of.length - 1];
  const which =
    channels < all ? `${channels} of ${all} channels, ${all - channels} are not drawn,` : `all ${channels} channels`;
  return { maps, caption: `Feature maps: ${which} of the first ${examples > 1 ? `${examples} examples` : "example"}.` };
}

function matrixMaps(picture, p, scale, tokens, open) {
  const [several, rows, columns] = picture.shape;
  const of = picture.of.slice(-2);
  const positions = of.length > 1 ? of[0] : 0;
  const maps = [];
  for (let e = 0; e < several; e++) {
    const at = (i, j) => p.value((e * rows + i) * columns + j);
    const canvas = mapCanvas(rows, columns, at, scale, {
      size: 520,
      label: `Values, ${rows} rows and ${columns} columns`,
      describe: (i, j) => `row ${placeName(i, positions, tokens)}, unit ${j}: ${show(at(i, j))}`,
      open: () =>
        open({
          title: picture.path,
          values: cells(rows, columns, at),
          rows: tokens.length === positions ? tokens.slice(0, rows) : [],
          columns: [],
          column_title: "unit",
          index: [],
        }),
    });
    maps.push(el("div", {}, several > 1 ? el("span", {}, `${e}`) : null, canvas));
  }
  const cut = of[of.length - 1] > columns || positions > rows ? ` The corner of ${picture.of.join(" × ")}.` : "";
  return { maps, caption: `The value itself: a column is a unit, a row a position or example.${cut}` };
}

// A matrix with a label for each row and column; `pick(i, j)` is called when a cell is clicked.
const LONGEST_ROW = 64;

function heatMap(panel) {
  const values = panel.values.map((row) => row.map(num));
  const rows = values.length;
  const columns = rows ? values[0].length : 0;
  const finite = values.flat().filter(Number.isFinite);
  if (!finite.length) return el("p", { class: "quiet" }, "There are no finite numbers to draw.");
  const given = (x, otherwise) => (Number.isFinite(num(x)) ? num(x) : finite.reduce(otherwise));
  const low = given(panel.low, (a, b) => Math.min(a, b));
  const high = given(panel.high, (a, b) => Math.max(a, b));
  const scale = colorScale(low, high, panel.signed);
  const rowName = (i) => panel.rows[i] ?? String(i);
  const columnName = (j) => panel.columns[j] ?? String(j);
  const longest = Array.from({ length: rows }, (_, i) => Math.min(rowName(i).length, LONGEST_ROW)).reduce(
    (a, b) => Math.max(a, b),
    1,
  );
  const longestColumn = Array.from({ length: columns }, (_, j) => Math.min(columnName(j).length, 18)).reduce(
    (a, b) => Math.max(a, b),
    1,
  );
  const widest = panel.texts && panel.texts.length ? 56 : 44;
  const cell = Math.max(3, Math.min(widest, Math.floor(660 / Math.max(columns, 1)), Math.max(14, Math.floor(560 / rows))));
  const tall = Math.max(cell, Math.min(16, Math.floor(560 / rows))); // every row has room for its name, if they are few
  const turned = longestColumn * 6.6 > cell * 1.1 && columns > 1;
  const left = longest * 6.6 + 14 + (panel.row_title ? 16 : 0);
  const bottom = (turned ? longestColumn * 5.2 + 14 : 20) + (panel.column_title ? 16 : 0);
  const [w, h] = [columns * cell, rows * tall];
  const root = svg("svg", {
    class: "chart",
    viewBox: `0 0 ${left + w + 8} ${h + bottom + 4}`,
    role: "img",
    "aria-label": `${panel.title}: ${rows} rows and ${columns} columns from ${show(low)} to ${show(high)}`,
  });
  root.style.width = `${left + w + 8}px`;
  const picture = paint(document.createElement("canvas"), rows, columns, (i, j) => values[i][j], scale);
  const image = svg("image", {
    x: left,
    y: 0,
    width: w,
    height: h,
    preserveAspectRatio: "none",
    href: picture.toDataURL(),
  });
  image.style.imageRendering = "pixelated";
  root.append(image);
  const every = (n, size) => Math.max(1, Math.ceil(12 / size), Math.ceil(n / 64));
  for (let i = 0; i < rows; i += every(rows, tall)) {
    const at = { x: left - 6, y: (i + 0.5) * tall + 4, "text-anchor": "end" };
    root.append(svg("text", at, ...named(rowName(i), LONGEST_ROW)));
  }
  for (let j = 0; j < columns; j += every(columns, cell)) {
    const [x, y] = [left + (j + 0.5) * cell, h + 14];
    const place = turned
      ? { "text-anchor": "end", transform: `translate(${x + 4} ${y - 4}) rotate(-45)` }
      : { "text-anchor": "middle", x, y };
    root.append(svg("text", place, ...named(columnName(j), 18)));
  }
  if (panel.column_title)
    root.append(svg("text", { x: left + w / 2, y: h + bottom, "text-anchor": "middle" }, panel.column_title));
  if (panel.row_title)
    root.append(
      svg("text", { "text-anchor": "middle", transform: `translate(12 ${h / 2}) rotate(-90)` }, panel.row_title),
    );
  if (cell >= 30) {
    for (let i = 0; i < rows; i++) {
      for (let j = 0; j < columns; j++) {
        const given = panel.texts && panel.texts[i] ? clipped(panel.texts[i][j] ?? "", Math.floor(cell / 6.4)) : null;
        const said = given ?? (Number.isFinite(values[i][j]) ? short(values[i][j]) : "×");
        if (said.length * 6.4 > cell) continue;
        const [r, g, b] = scale.color(values[i][j]);
        const text = svg(
          "text",
          { x: left + (j + 0.5) * cell, y: (i + 0.5) * tall + 4, "text-anchor": "middle" },
          said,
        );
        text.style.fill = 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#16191c" : "#ffffff";
        root.append(text);
      }
    }
  }
  const textAt = (i, j) => (panel.texts && panel.texts[i] ? `${JSON.stringify(panel.texts[i][j] ?? "")} ` : "");
  const place = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const i = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows)));
    const j = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns)));
    return [i, j];
  };
  root.append(
    svg("rect", {
      class: "hit",
      x: left,
      y: 0,
      width: w,
      height: h,
      on: {
        pointermove: (event) => {
          const [i, j] = place(event);
          const [a, b] = [panel.row_title || "row", panel.column_title || "column"];
          tip.show(
            event,
            `${a} ${rowName(i)}, ${b} ${columnName(j)}\n${textAt(i, j)}${Number.isFinite(values[i][j]) ? show(values[i][j]) : "not finite"}`,
          );
        },
        pointerleave: tip.hide,
        click: (event) => panel.pick && panel.pick(...place(event)),
      },
    }),
  );
  return el("div", {}, scaleLegend(scale, finite.length < rows * columns), el("div", { class: "scroll-x", tabindex: "0" }, root));
}

function short(x) {
  const text =
    Math.abs(x) >= 1000 || (x !== 0 && Math.abs(x) < 0.005)
      ? x.toExponential(0).replace("e+", "e")
      : String(Number(x.toPrecision(2)));
  return text.replace(/-/g, "−");
}

// A long name with its middle left out: paths differ at both ends.
function folded(text, n) {
  if (text.length <= n) return text;
  const tail = Math.floor((n - 1) / 2);
  return `${text.slice(0, n - 1 - tail)}…${text.slice(text.length - tail)}`;
}

// The text of a label; hovering over a shortened one shows the whole name.
function named(text, n) {
  return text.length > n ? [folded(text, n), svg("title", {}, text)] : [text];
}

function clipped(text, n) {
  return text.length > n ? `${text.slice(0, n - 1)}…` : text;
}
