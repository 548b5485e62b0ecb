// Small tools: elements, numbers as people read them, the tooltip. Text is always set as text, never as markup.

// Characters that turn the direction of the text around them: in a name they would show another one.
const TURNING = /[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

function written(text) {
  return String(text).replace(TURNING, (c) => `\\u${c.charCodeAt(0).toString(16)}`);
}

const SVG = "http://www.w3.org/2000/svg";

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  return fill(made, attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    else if (name === "color") made.style.color = value;
    else if (name === "background") made.style.background = value;
    else if (name === "width" && made instanceof HTMLElement && !(made instanceof HTMLCanvasElement))
      made.style.width = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined && child !== false) made.append(child instanceof Node ? child : written(child));
  return made;
}

// In the JSON, numbers that are not finite are strings.
function num(x) {
  if (typeof x === "number") return x;
  if (x === "Infinity") return Infinity;
  if (x === "-Infinity") return -Infinity;
  return NaN;
}

function show(x) {
  x = num(x);
  if (Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < 1e6) return x.toLocaleString("en").replace("-", "−");
  const text = size >= 1e5 || size < 1e-3 ? x.toExponential(2).replace("e+", "e") : String(Number(x.toPrecision(4)));
  return text.replace(/-/g, "−");
}

// Where a number lies between two others, 0 to 1. In halves: a width of up to twice the largest number overflows.
function between(x, low, high) {
  const share = (x / 2 - low / 2) / (high / 2 - low / 2);
  return Number.isNaN(share) ? 0.5 : Math.max(0, Math.min(1, share));
}

// The number at a share of the way from one to another.
function mixed(low, high, share) {
  return low * (1 - share) + high * share;
}

function percent(share) {
  if (!Number.isFinite(share)) return "not finite";
  if (share > 0 && share < 0.001) return "<0.1 %";
  return `${share >= 0.1 ? Math.round(share * 100) : Number((share * 100).toFixed(1))} %`;
}

function plural(n, word) {
  return `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
}

function figure(caption, ...content) {
  return el("figure", {}, ...content, caption ? el("figcaption", {}, caption) : null);
}

const tip = {
  show(event, text) {
    const box = document.getElementById("tip");
    box.textContent = text;
    box.hidden = false;
    const [w, h] = [box.offsetWidth, box.offsetHeight];
    const x = event.clientX + 14 + w > innerWidth ? event.clientX - w - 10 : event.clientX + 14;
    const y = event.clientY + 18 + h > innerHeight ? event.clientY - h - 10 : event.clientY + 18;
    box.style.left = `${Math.max(4, x)}px`;
    box.style.top = `${Math.max(4, y)}px`;
  },
  hide() {
    document.getElementById("tip").hidden = true;
  },
};
