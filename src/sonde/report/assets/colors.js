// Colors of numbers: one scale for magnitudes, dark to bright and even to the eye, and one for signed numbers, blue
// below zero and red above. Both are readable for people who do not distinguish red and green.

const MAGNITUDE = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
const SIGNED = ["#134b8a", "#3f7fc0", "#83b3de", "#c5dcef", "#f5f3f0", "#f6cfbb", "#e5936f", "#c64f41", "#8e1127"];
const MISSING = [216, 27, 96];

function ramp(colors) {
  const stops = colors.map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)));
  const table = [];
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const part = at - low;
    table.push(stops[low].map((x, k) => Math.round(x + (stops[low + 1][k] - x) * part)));
  }
  return table;
}

const RAMPS = { magnitude: ramp(MAGNITUDE), signed: ramp(SIGNED) };

// A scale from numbers to colors. A signed one has zero in its middle.
function colorScale(low, high, signed) {
  if (signed) {
    const most = Math.max(Math.abs(low), Math.abs(high)) || 1;
    [low, high] = [-most, most];
  }
  const table = signed ? RAMPS.signed : RAMPS.magnitude;
  const color = (x) => {
    if (!Number.isFinite(x)) return MISSING;
    return table[Math.round(between(x, low, high) * 255)];
  };
  return { low, high, signed, color, table };
}

function paint(canvas, rows, columns, at, scale) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let i = 0, k = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++, k += 4) {
      const c = scale.color(at(i, j));
      image.data[k] = c[0];
      image.data[k + 1] = c[1];
      image.data[k + 2] = c[2];
      image.data[k + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function scaleLegend(scale, missing, why = "not finite") {
  const strip = paint(
    el("canvas", { "aria-hidden": "true" }),
    1,
    256,
    (_, j) => j / 255,
    { color: (share) => scale.table[Math.round(share * 255)] },
  );
  const parts = [el("span", { class: "scale" }, show(scale.low), strip, show(scale.high))];
  if (missing) {
    parts.push(
      el("span", { class: "scale" }, el("span", { class: "swatch", background: `rgb(${MISSING})` }), why),
    );
  }
  return el("div", { class: "legend" }, ...parts);
}
