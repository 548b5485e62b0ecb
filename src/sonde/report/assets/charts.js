// Line charts and histograms, drawn as SVG. Every chart has a name for screen readers and a tooltip for the pointer.

const CHART = { left: 58, right: 12, top: 10, bottom: 34 };

// Drawn for the available width: a chart that is only scaled down cannot be read on a phone.
function chartWidth() {
  const page = document.documentElement.clientWidth;
  return Math.max(320, Math.min(760, page <= 820 ? page - 66 : page - 430));
}

function logTicks(low, high) {
  const [a, b] = [Math.floor(low), Math.ceil(high)];
  const step = Math.max(1, Math.ceil((b - a) / 6));
  const ticks = [];
  for (let p = a; p <= b; p += step) ticks.push(p);
  return ticks;
}

function linearTicks(low, high, n = 5) {
  const span = high - low || 1;
  const raw = span / n;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) || power * 10;
  const ticks = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9 && ticks.length < 20; t += step) {
    ticks.push(Math.abs(t) < step * 1e-9 ? 0 : t);
  }
  return ticks;
}

// Lines over numbered positions.
//   lines: [{name, color, y, dash, bad}]; y holds numbers, NaN for none; bad[i] says that the i-th is not finite
//   labels: the name of each position in the tooltip;  ticks: [{at, text}] below the axis
//   log, height, xTitle, name;  pick(i): called when position i is clicked;  x: the positions, if not 0, 1, 2, ...
function lineChart({ lines, labels, ticks, log = false, height = 230, xTitle = "", yTitle = "", name, pick, x }) {
  const n = Math.max(0, ...lines.map((line) => line.y.length));
  const places = x || Array.from({ length: n }, (_, i) => i);
  const width = chartWidth();
  const below = xTitle ? CHART.bottom : 22;
  const plot = { w: width - CHART.left - CHART.right, h: height - CHART.top - below };
  const usable = (v) => Number.isFinite(v) && (!log || v > 0);
  const all = lines.flatMap((line) => [...line.y, ...(line.band ? line.band.flat() : [])]).filter(usable);
  // The largest floats leave no room for a margin.
  const unit = all.some((v) => Math.abs(v) > 1e300) ? 2 ** 20 : 1;
  const turn = log ? Math.log10 : (v) => v / unit;
  let low = all.length ? all.reduce((a, b) => Math.min(a, b)) : log ? 1 : 0;
  let high = all.length ? all.reduce((a, b) => Math.max(a, b)) : log ? 1 : 1;
  [low, high] = [turn(low), turn(high)];
  if (log) {
    [low, high] = [Math.floor(low * 2) / 2, Math.ceil(high * 2) / 2];
    if (high - low < 1) [low, high] = [Math.floor(low), Math.floor(low) + 1];
  } else if (high === low) {
    [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  } else {
    const margin = (high - low) * 0.05;
    [low, high] = [low - margin, high + margin];
  }
  const [x0, x1] = [places[0] ?? 0, places[n - 1] ?? 1];
  const px = (i) => CHART.left + (n > 1 && x1 > x0 ? between(places[i], x0, x1) * plot.w : plot.w / 2);
  const py = (v) => CHART.top + (1 - (turn(v) - low) / (high - low)) * plot.h;
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name });

  const yTicks = log ? logTicks(low, high).filter((p) => p >= low - 1e-9 && p <= high + 1e-9) : linearTicks(low, high);
  for (const t of yTicks) {
    const y = CHART.top + (1 - (t - low) / (high - low)) * plot.h;
    root.append(svg("line", { class: "grid", x1: CHART.left, x2: width - CHART.right, y1: y, y2: y }));
    const text = log ? (Math.abs(t) <= 3 ? String(Number((10 ** t).toPrecision(1))) : `1e${t}`) : show(t * unit);
    root.append(svg("text", { x: CHART.left - 8, y: y + 4, "text-anchor": "end" }, text.replace("-", "−")));
  }
  for (const { at, text } of ticks || []) {
    root.append(
      svg(
        "text",
        {
          x: px(at),
          y: height - below + 16,
          "text-anchor": at === 0 && n > 1 ? "start" : at === n - 1 && n > 1 ? "end" : "middle",
        },
        text,
      ),
    );
  }
  if (xTitle) root.append(svg("text", { x: CHART.left + plot.w / 2, y: height - 4, "text-anchor": "middle" }, xTitle));
  if (yTitle)
    root.append(
      svg(
        "text",
        {
          x: 12,
          y: CHART.top + plot.h / 2,
          "text-anchor": "middle",
          transform: `rotate(-90 12 ${CHART.top + plot.h / 2})`,
        },
        yTitle,
      ),
    );

  for (const line of lines) {
    if (line.band) root.append(band(line, px, py, usable));
    let path = "";
    let open = false;
    line.y.forEach((v, i) => {
      if (!usable(v)) {
        open = false;
        return;
      }
      path += `${open ? "L" : "M"}${px(i).toFixed(1)} ${py(v).toFixed(1)}`;
      open = true;
    });
    root.append(
      svg("path", {
        class: "line",
        d: path || "M0 0",
        stroke: line.color,
        "stroke-dasharray": line.dash ? "5 4" : null,
      }),
    );
    line.y.forEach((v, i) => {
      const alone = usable(v) && !usable(line.y[i - 1]) && !usable(line.y[i + 1]);
      if (usable(v) && (n <= 80 || alone))
        root.append(svg("circle", { cx: px(i), cy: py(v), r: 2.6, fill: line.color }));
      if (line.bad && line.bad[i]) {
        const [cx, cy] = [px(i), CHART.top + 5];
        root.append(
          svg("path", {
            d: `M${cx - 4} ${cy - 4}L${cx + 4} ${cy + 4}M${cx + 4} ${cy - 4}L${cx - 4} ${cy + 4}`,
            stroke: "var(--missing)",
            "stroke-width": 2,
          }),
        );
      }
    });
  }
  const cursor = svg("line", { class: "cursor", y1: CHART.top, y2: CHART.top + plot.h, visibility: "hidden" });
  const nearest = (event) => {
    const box = root.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    let best = 0;
    for (let i = 1; i < n; i++) if (Math.abs(px(i) - at) < Math.abs(px(best) - at)) best = i;
    return best;
  };
  const hit = svg("rect", {
    class: "hit",
    x: CHART.left,
    y: CHART.top,
    width: plot.w,
    height: plot.h,
    on: {
      pointermove: (event) => {
        if (!n) return;
        const i = nearest(event);
        cursor.setAttribute("x1", px(i));
        cursor.setAttribute("x2", px(i));
        cursor.setAttribute("visibility", "visible");
        const rows = lines.map((line) => `${line.name}: ${line.bad && line.bad[i] ? "not finite" : show(line.y[i])}`);
        tip.show(event, [labels ? labels[i] : `${show(places[i])}`, ...rows].join("\n"));
      },
      pointerleave: () => {
        cursor.setAttribute("visibility", "hidden");
        tip.hide();
      },
      click: (event) => {
        if (pick && n) pick(nearest(event));
      },
    },
  });
  if (!pick) hit.style.cursor = "default";
  root.append(cursor, hit);
  return root;
}

function band(line, px, py, usable) {
  const points = line.band.map(([a, b], i) => [i, a, b]).filter(([, a, b]) => usable(a) && usable(b));
  const up = points.map(([i, , b]) => `${px(i).toFixed(1)},${py(b).toFixed(1)}`);
  const down = points.map(([i, a]) => `${px(i).toFixed(1)},${py(a).toFixed(1)}`).reverse();
  return svg("polygon", { class: "band", points: [...up, ...down].join(" "), fill: line.color });
}

function lineLegend(lines) {
  return el(
    "div",
    { class: "legend" },
    ...lines.map((line) => el("span", {}, el("i", { color: line.color, class: line.dash ? "dash" : null }), line.name)),
  );
}

// How many elements lie between one power of two and the next, on both sides of zero.
const NEAR_ZERO = 0.01; // the bins around zero that hold no more than this share are drawn as one
const FEWEST = 10; // so that a value that is nearly constant does not look like a wall

function histogram(counts, edges, name) {
  const [width, height, top, base] = [420, 172, 20, 136];
  const total = counts.counts.reduce((a, b) => a + b, 0);
  const bars = mergedBars(counts, edges, total);
  const most = bars.reduce((a, bar) => Math.max(a, bar.n), 0);
  const w = width / bars.length;
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name });
  root.append(svg("line", { class: "grid", x1: 0, x2: width, y1: base, y2: base }));
  root.append(svg("line", { class: "grid", x1: 0, x2: width, y1: top, y2: top }));
  root.append(svg("text", { x: 0, y: top - 6 }, plural(most, "element")));
  root.append(svg("text", { x: width / 2, y: height - 3, "text-anchor": "middle" }, "value, on a logarithmic scale"));
  const step = Math.max(1, Math.ceil(bars.length / 8));
  bars.forEach(({ n, low, high }, k) => {
    const x = k * w;
    const h = Math.max(1, most ? (n / most) * (base - top) : 0);
    const color = high <= 0 ? "var(--below)" : low >= 0 ? "var(--above)" : "var(--zero)";
    if (n)
      root.append(
        svg("rect", { x: x + w * 0.06, y: base - h, width: w * 0.88, height: h, fill: color, rx: Math.min(2, w / 4) }),
      );
    const text = `${bin(low, high)}\n${plural(n, "element")}, ${percent(n / total)}`;
    root.append(
      svg("rect", {
        class: "hit",
        x,
        y: top,
        width: w,
        height: base - top,
        on: { pointermove: (event) => tip.show(event, text), pointerleave: tip.hide },
      }),
    );
    if (low < 0 && high > 0) root.append(svg("text", { x: x + w / 2, y: base + 15, "text-anchor": "middle" }, "0"));
    else if (high <= 0 && (bars.length - k) % step === 0 && Number.isFinite(low))
      label(root, x, base, low, k === 0 ? "start" : "middle");
    else if (low > 0 && (k + 1) % step === 0 && Number.isFinite(high))
      label(root, x + w, base, high, k === bars.length - 1 ? "end" : "middle");
  });
  return root;
}

function label(root, x, base, edge, anchor) {
  root.append(svg("text", { x, y: base + 15, "text-anchor": anchor }, power(edge)));
}

// The bins that are drawn: those between the first and the last that hold something, those around zero as one.
function mergedBars(counts, edges, total) {
  const last = edges.length - 2;
  const middle = last / 2;
  const at = (i) => counts.counts[i - counts.first] || 0;
  let [start, end] = [counts.first, counts.first + counts.counts.length - 1];
  let near = -1;
  // The bin of zero may hold many elements: the empty bins down to it are not drawn.
  if (start <= middle && end >= middle) near = 0;
  for (let held = 0; near >= 0 && near < middle - 1; near++) {
    held += at(middle - near - 1) + at(middle + near + 1);
    if (held > NEAR_ZERO * total) break;
  }
  for (let more = true; more && end - start + 1 < FEWEST;) {
    more = start > 0 || end < last;
    if (start > 0) start -= 1;
    if (end < last) end += 1;
  }
  const bars = [];
  for (let i = start; i <= end; i++) {
    const inside = Math.abs(i - middle) <= near;
    const previous = bars[bars.length - 1];
    const [low, high] = [num(edges[i]), num(edges[i + 1])];
    if (inside && previous && previous.inside) {
      previous.n += at(i);
      previous.high = high;
    } else {
      bars.push({ n: at(i), low: inside ? num(edges[middle - near]) : low, high, inside });
    }
  }
  for (const bar of bars) if (bar.inside) bar.high = num(edges[middle + near + 1]);
  return bars;
}

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

function power(edge) {
  const p = Math.round(Math.log2(Math.abs(edge)));
  const sign = edge < 0 ? "−" : "";
  const raised = Array.from(String(p), (c) => RAISED[c]).join("");
  return p >= -3 && p <= 9 ? `${sign}${Number((2 ** p).toPrecision(3))}` : `${sign}2${raised}`;
}

function bin(low, high) {
  if (low < 0 && high > 0) return `between ${power(low)} and ${power(high)}`;
  if (!Number.isFinite(low)) return `below ${show(high)}`;
  if (!Number.isFinite(high)) return `above ${show(low)}`;
  return `${show(low)} to ${show(high)}`;
}
