// A card with a picture: SVG and PNG files of it, and the Python that makes its numbers.

import { el, svg } from "/static/shared.js";

// What a card can be left with as: a picture of everything in it, and Python. `code` is a text, or makes one.
export function card(title, content, { code = null, note = "", name = "picture", more = [] } = {}) {
  const body = el("div", { class: "card-body" }, ...[content].flat());
  const button = (text, label, act) =>
    el("button", { class: "tool", type: "button", "aria-label": `${label}: ${title}`, on: { click: act } }, text);
  const tools = el(
    "div",
    { class: "tools" },
    ...more,
    button("SVG", "Save as SVG", () => saveSvg(body, name)),
    button("PNG", "Save as PNG", () => savePng(body, name)),
    code ? copyButton("Python", `Copy as Python: ${title}`, code) : null,
  );
  return el(
    "div",
    { class: "card" },
    el("div", { class: "card-head" }, el("h3", {}, title), tools),
    note ? el("p", { class: "quiet caption" }, note) : null,
    body,
  );
}

// A button that copies a text, and says so.
export function copyButton(text, label, code) {
  const button = el("button", { class: "tool", type: "button", "aria-label": label }, text);
  button.addEventListener("click", async () => {
    await copyText(typeof code === "function" ? await code() : code);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = text), 1200);
  });
  return button;
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a right to the clipboard, the old way.
    const area = el("textarea", { class: "off" }, text);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

// ------------------------------------------------------------------------------------------------------- pictures

const CONTROLS = ".tool, .button, .change-tools, .axes, .hit, .cursor, select, input, textarea, progress, .off";
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-family", "font-weight", "opacity"];

// A picture of what is laid out in a box, whole even where the page scrolls: backgrounds and borders as rectangles, text
// where it stands, canvases as images, charts as they are. Controls are left out.
export function drawingOf(box) {
  const frame = box.getBoundingClientRect();
  const root = svg("svg", { xmlns: "http://www.w3.org/2000/svg" });
  const size = { width: 1, height: 1 };
  const place = (rect) => {
    const placed = { x: rect.left - frame.left, y: rect.top - frame.top, width: rect.width, height: rect.height };
    size.width = Math.max(size.width, Math.ceil(placed.x + placed.width));
    size.height = Math.max(size.height, Math.ceil(placed.y + placed.height));
    return placed;
  };
  const walk = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return drawText(node, root, place);
    if (!(node instanceof Element) || node.matches(CONTROLS)) return;
    const style = getComputedStyle(node);
    const rect = node.getBoundingClientRect();
    if (style.display === "none" || style.visibility === "hidden" || !rect.width || !rect.height) return;
    if (node instanceof HTMLCanvasElement) {
      const rendering = style.imageRendering === "pixelated" ? "pixelated" : null;
      root.append(svg("image", { ...place(rect), href: node.toDataURL(), preserveAspectRatio: "none", "image-rendering": rendering }));
    } else if (node instanceof SVGSVGElement) {
      root.append(styledCopy(node, place(rect)));
    } else {
      drawBox(style, place(rect), root);
      node.childNodes.forEach(walk);
    }
  };
  walk(box);
  for (const [name, value] of Object.entries({ ...size, viewBox: `0 0 ${size.width} ${size.height}` })) root.setAttribute(name, value);
  return root;
}

function drawBox(style, placed, root) {
  const fill = plainColor(style.backgroundColor);
  const hasBorder = parseFloat(style.borderTopWidth) > 0 && style.borderTopStyle !== "none";
  const line = hasBorder ? plainColor(style.borderTopColor) : null;
  if (fill || line)
    root.append(svg("rect", { ...placed, rx: parseFloat(style.borderTopLeftRadius) || 0, fill: fill ?? "none", stroke: line, "stroke-width": line ? style.borderTopWidth : null }));
}

// One text element for each line that a text is broken into.
function drawText(node, root, place) {
  if (!node.data.trim()) return;
  const style = getComputedStyle(node.parentElement);
  const range = document.createRange();
  const lines = [];
  for (let i = 0; i < node.data.length; i++) {
    range.setStart(node, i);
    range.setEnd(node, i + 1);
    const rect = range.getBoundingClientRect();
    if (!rect.width) continue;
    const last = lines[lines.length - 1];
    if (last && Math.abs(last.top - rect.top) < rect.height / 2) {
      last.text += node.data[i];
      last.right = rect.right;
    } else lines.push({ text: node.data[i], left: rect.left, right: rect.right, top: rect.top, height: rect.height });
  }
  const size = parseFloat(style.fontSize);
  for (const { text, left, right, top, height } of lines) {
    const { x, y } = place({ left, top, width: right - left, height });
    const look = { fill: plainColor(style.color), "font-family": style.fontFamily, "font-size": size, "font-weight": style.fontWeight };
    root.append(svg("text", { x, y: y + height / 2 + 0.35 * size, "xml:space": "preserve", ...look }, text));
  }
}

// A chart as it looks: what the style of the page gives it is written into it.
function styledCopy(chart, placed) {
  const copy = chart.cloneNode(true);
  const [from, to] = [chart.querySelectorAll("*"), copy.querySelectorAll("*")];
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    for (const name of STYLES) if (style[name]) to[i].setAttribute(name, style.getPropertyValue(name));
  });
  for (const extra of copy.querySelectorAll(".hit, .cursor")) extra.remove();
  for (const [name, value] of Object.entries(placed)) copy.setAttribute(name, value);
  for (const styled of [copy, ...copy.querySelectorAll("[style]")]) styled.removeAttribute("style");
  return copy;
}

const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const colors = new Map();

// A color as every program reads it; null for none. The browser's own forms, such as color(srgb ...), are not known elsewhere.
function plainColor(text) {
  if (!colors.has(text)) {
    pixel.canvas.width = pixel.canvas.height = 1;
    pixel.fillStyle = text;
    pixel.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pixel.getImageData(0, 0, 1, 1).data;
    colors.set(text, a ? (a === 255 ? `rgb(${r},${g},${b})` : `rgba(${r},${g},${b},${(a / 255).toFixed(3)})`) : null);
  }
  return colors.get(text);
}

export function saveSvg(box, name) {
  saveBlob(new Blob([new XMLSerializer().serializeToString(drawingOf(box))], { type: "image/svg+xml" }), `${fileName(name)}.svg`);
}

const SHARP = 2; // pixels of a PNG for each of the page

export function savePng(box, name) {
  const drawing = drawingOf(box);
  const image = new Image();
  image.onload = () => {
    const canvas = el("canvas", {});
    canvas.width = drawing.getAttribute("width") * SHARP;
    canvas.height = drawing.getAttribute("height") * SHARP;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.fillStyle = getComputedStyle(document.querySelector(".card") ?? document.body).backgroundColor;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => saveBlob(blob, `${fileName(name)}.png`));
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(drawing))}`;
}

export function saveBlob(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function saveJson(data, name) {
  saveBlob(new Blob([JSON.stringify(data, null, 1)], { type: "application/json" }), name);
}

function fileName(name) {
  return name.replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 80) || "picture";
}
