// Curves over the steps of a run, drawn on a canvas: zoom with the wheel or + and −, pan by dragging or with the arrow
// keys. At every pixel the smallest and the largest value are drawn, so that no spike is lost.

import { el, linearTicks, logTicks, num, show, tip } from "/static/shared.js";

const EDGE = { left: 62, right: 14, top: 14, bottom: 26 };

//   lines: [{name, color, x: Float32Array, y: Float32Array}];  marks: [{x, text}];  frame: {from, to} or null for all
//   moved(frame): called when the frame was changed by hand;  pick(x): a click at a step
export function timeline({ lines, marks = [], height = 260, name, log = false, width, frame = null, moved = () => {}, pick = null }) {
  const canvas = el("canvas", { class: "timeline", role: "img", tabindex: "0", "aria-label": `${name}. Plus and minus zoom, arrow keys pan, 0 shows all.` });
  const ratio = window.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  const plot = { w: width - EDGE.left - EDGE.right, h: height - EDGE.top - EDGE.bottom };
  const whole = { from: Infinity, to: -Infinity };
  for (const { x } of lines) {
    if (!x.length) continue;
    whole.from = Math.min(whole.from, x[0]);
    whole.to = Math.max(whole.to, x[x.length - 1]);
  }
  if (!(whole.from < whole.to)) [whole.from, whole.to] = Number.isFinite(whole.from) ? [whole.from - 0.5, whole.from + 0.5] : [0, 1];
  let view = frame ? { ...frame } : { ...whole };
  let waiting = 0;
  const usable = (v) => Number.isFinite(v) && (!log || v > 0);
  const turn = log ? Math.log10 : (v) => v;

  // The first index whose step is not before x.
  function after(xs, x) {
    let [low, high] = [0, xs.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  function columnsOf(line) {
    const first = Math.max(0, after(line.x, view.from) - 1);
    const last = Math.min(line.x.length, after(line.x, view.to) + 1);
    const low = new Float32Array(plot.w + 1).fill(Infinity);
    const high = new Float32Array(plot.w + 1).fill(-Infinity);
    const bad = new Uint8Array(plot.w + 1);
    const scale = plot.w / (view.to - view.from);
    for (let i = first; i < last; i++) {
      const px = Math.max(0, Math.min(plot.w, Math.round((line.x[i] - view.from) * scale)));
      const v = line.y[i];
      if (!usable(v)) {
        if (!Number.isFinite(v)) bad[px] = 1;
        continue;
      }
      const t = turn(v);
      if (t < low[px]) low[px] = t;
      if (t > high[px]) high[px] = t;
    }
    return { low, high, bad };
  }

  function draw() {
    waiting = 0;
    const style = getComputedStyle(document.body);
    const color = (variable) => (variable.startsWith("var(") ? style.getPropertyValue(variable.slice(4, -1)).trim() : variable);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const drawn = lines.map(columnsOf);
    let [low, high] = [Infinity, -Infinity];
    for (const columns of drawn) {
      for (let px = 0; px <= plot.w; px++) {
        if (columns.low[px] < low) low = columns.low[px];
        if (columns.high[px] > high) high = columns.high[px];
      }
    }
    if (!(low <= high)) [low, high] = [0, 1];
    const margin = (high - low || Math.abs(high) || 1) * 0.06;
    [low, high] = [low - margin, high + margin];
    const py = (t) => EDGE.top + (1 - (t - low) / (high - low)) * plot.h;
    context.font = "11px system-ui, sans-serif";
    context.strokeStyle = color("var(--rule)");
    context.fillStyle = color("var(--quiet)");
    context.lineWidth = 1;
    context.textAlign = "right";
    const ticks = log && high - low > 1 ? logTicks(low, high).filter((t) => t >= low && t <= high) : linearTicks(low, high, 4);
    for (const t of ticks) {
      context.beginPath();
      context.moveTo(EDGE.left, py(t));
      context.lineTo(width - EDGE.right, py(t));
      context.stroke();
      context.fillText(log ? show(Number((10 ** t).toPrecision(2))) : show(t), EDGE.left - 8, py(t) + 4);
    }
    context.textAlign = "center";
    const px = (x) => EDGE.left + ((x - view.from) / (view.to - view.from)) * plot.w;
    for (const t of linearTicks(view.from, view.to, Math.max(2, Math.floor(plot.w / 110)))) context.fillText(show(t), px(t), height - 8);
    for (const mark of marks) {
      if (mark.x < view.from || mark.x > view.to) continue;
      context.strokeStyle = color("var(--problem)");
      context.setLineDash([3, 3]);
      context.beginPath();
      context.moveTo(px(mark.x), EDGE.top);
      context.lineTo(px(mark.x), height - EDGE.bottom);
      context.stroke();
      context.setLineDash([]);
      context.fillStyle = color("var(--problem)");
      context.beginPath();
      context.moveTo(px(mark.x) - 5, EDGE.top - 10);
      context.lineTo(px(mark.x) + 5, EDGE.top - 10);
      context.lineTo(px(mark.x), EDGE.top - 2);
      context.fill();
    }
    lines.forEach((line, k) => {
      const columns = drawn[k];
      context.strokeStyle = color(line.color);
      context.lineWidth = 1.4;
      context.beginPath();
      let open = false;
      for (let i = 0; i <= plot.w; i++) {
        if (columns.bad[i]) {
          context.fillStyle = color("var(--missing)");
          context.fillRect(EDGE.left + i - 1, EDGE.top, 3, 6);
        }
        if (columns.low[i] === Infinity) continue;
        const x = EDGE.left + i;
        if (open) context.lineTo(x, py(columns.high[i]));
        else context.moveTo(x, py(columns.high[i]));
        if (columns.low[i] !== columns.high[i]) context.lineTo(x, py(columns.low[i]));
        open = true;
      }
      context.stroke();
    });
  }

  const later = () => {
    if (!waiting) waiting = requestAnimationFrame(draw);
  };
  function look(from, to) {
    const span = Math.min(Math.max(to - from, (whole.to - whole.from) * 1e-6), whole.to - whole.from);
    from = Math.max(whole.from, Math.min(from, whole.to - span));
    view = { from, to: from + span };
    later();
    moved(span >= whole.to - whole.from ? null : view);
  }
  function zoom(factor, share = 0.5) {
    const span = view.to - view.from;
    const center = view.from + share * span;
    look(center - share * span * factor, center + (1 - share) * span * factor);
  }
  const shareOf = (event) => Math.max(0, Math.min(1, (event.clientX - canvas.getBoundingClientRect().left - EDGE.left) / plot.w));
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.18 : 1 / 1.18, shareOf(event));
    },
    { passive: false },
  );
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    drag = { x: event.clientX, from: view.from, to: view.to, isClick: true };
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag?.isClick && pick) pick(view.from + shareOf(event) * (view.to - view.from));
    drag = null;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      if (Math.abs(event.clientX - drag.x) > 3) drag.isClick = false;
      const by = ((event.clientX - drag.x) / plot.w) * (drag.to - drag.from);
      look(drag.from - by, drag.to - by);
      tip.hide();
      return;
    }
    const x = view.from + shareOf(event) * (view.to - view.from);
    const told = lines.map((line) => {
      const at = Math.min(line.x.length - 1, after(line.x, x));
      return at < 0 ? null : `${line.name}: ${Number.isFinite(line.y[at]) ? show(num(line.y[at])) : "not finite"}`;
    });
    const first = lines.find((line) => line.x.length);
    const step = first ? first.x[Math.min(first.x.length - 1, after(first.x, x))] : x;
    const near = marks.filter((mark) => Math.abs(mark.x - x) < ((view.to - view.from) / plot.w) * 6).map((mark) => mark.text);
    tip.show(event, [`step ${show(step)}`, ...told.filter(Boolean).slice(0, 12), ...near].join("\n"));
  });
  canvas.addEventListener("pointerleave", tip.hide);
  canvas.addEventListener("keydown", (event) => {
    const span = view.to - view.from;
    const act = {
      "+": () => zoom(1 / 1.5),
      "=": () => zoom(1 / 1.5),
      "-": () => zoom(1.5),
      0: () => look(whole.from, whole.to),
      ArrowLeft: () => look(view.from - span / 8, view.to - span / 8),
      ArrowRight: () => look(view.from + span / 8, view.to + span / 8),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  draw();
  canvas.look = look;
  return canvas;
}
