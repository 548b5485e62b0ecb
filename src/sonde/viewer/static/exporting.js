// A card with a picture: SVG and PNG files of it, and the Python that makes its numbers.

import { el } from "/static/shared.js";

export function card(title, content, { code = null, note = "", name = "picture" } = {}) {
  const body = el("div", { class: "card-body" }, ...[content].flat());
  const tools = el("div", { class: "tools" });
  const box = el(
    "div",
    { class: "card" },
    el("div", { class: "card-head" }, el("h3", {}, title), tools),
    note ? el("p", { class: "quiet caption" }, note) : null,
    body,
  );
  const drawing = () => body.querySelector("svg.chart, canvas");
  const button = (text, label, act) =>
    el("button", { class: "tool", type: "button", "aria-label": `${label}: ${title}`, on: { click: act } }, text);
  if (drawing())
    tools.append(
      button("SVG", "Save as SVG", () => saveSvg(drawing(), name)),
      button("PNG", "Save as PNG", () => savePng(drawing(), name)),
    );
  if (code) {
    const copy = button("Python", "Copy as Python", async () => {
      await copyText(typeof code === "function" ? await code() : code);
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Python"), 1200);
    });
    tools.append(copy);
  }
  return box;
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

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-family", "opacity"];

// The picture as a file of its own: styles that the page gives it are written into it.
export function svgText(drawing) {
  const [width, height] = [drawing.clientWidth || drawing.width, drawing.clientHeight || drawing.height];
  let root;
  if (drawing instanceof HTMLCanvasElement) {
    root = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const image = document.createElementNS("http://www.w3.org/2000/svg", "image");
    for (const [key, value] of Object.entries({ width, height, href: drawing.toDataURL() })) image.setAttribute(key, value);
    image.setAttribute("preserveAspectRatio", "none");
    image.setAttribute("style", "image-rendering: pixelated");
    root.append(image);
    root.setAttribute("viewBox", `0 0 ${width} ${height}`);
  } else {
    root = drawing.cloneNode(true);
    const [from, to] = [drawing.querySelectorAll("*"), root.querySelectorAll("*")];
    from.forEach((node, i) => {
      const style = getComputedStyle(node);
      for (const name of STYLES) if (style[name]) to[i].setAttribute(name, style.getPropertyValue(name));
    });
    for (const extra of root.querySelectorAll(".hit, .cursor")) extra.remove();
  }
  root.setAttribute("width", width);
  root.setAttribute("height", height);
  root.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(root);
}

export function saveSvg(drawing, name) {
  if (drawing) saveBlob(new Blob([svgText(drawing)], { type: "image/svg+xml" }), `${fileName(name)}.svg`);
}

export function savePng(drawing, name) {
  if (!drawing) return;
  const image = new Image();
  const scale = 2;
  image.onload = () => {
    const canvas = el("canvas", {});
    canvas.width = drawing.clientWidth * scale;
    canvas.height = drawing.clientHeight * scale;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.fillStyle = getComputedStyle(document.body).backgroundColor;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => saveBlob(blob, `${fileName(name)}.png`));
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(drawing))}`;
}

export function saveBlob(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function fileName(name) {
  return name.replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 80) || "picture";
}
