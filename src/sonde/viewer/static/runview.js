// A training run while it goes on, or after it was killed: its loss, any of its numbers, families of layers over depth
// and time, and alerts on the time line. Other runs on the page are drawn over it.

import { buildTree, el, heatMap, num, plural, show } from "/static/shared.js";
import { card } from "/static/exporting.js";
import { unpacked } from "/static/numbers.js";
import { current, update } from "/static/state.js";
import { timeline } from "/static/timeline.js";

const EVERY = 2000; // milliseconds between two looks at the file
const COLORS = ["var(--value)", "var(--gradient)", "#2a9d6e", "#a05fc0", "#b5891b", "#7a828b"];
const BINS = 60; // of time, in the picture of a family

export class RunPage {
  constructor(context) {
    this.context = context;
    this.columns = new Map(); // by run and name
    this.info = new Map();
    this.alerts = [];
    this.frame = null;
    this.timer = 0;
    this.shown = "";
  }

  get name() {
    return this.context.card.name;
  }

  get runs() {
    const others = current().runs.filter((run) => run !== this.name);
    return [this.name, ...others];
  }

  stop() {
    clearTimeout(this.timer);
    this.isStopped = true;
  }

  async start() {
    document.querySelector(".side-head label").textContent = "Numbers";
    await this.look();
  }

  // Looks for news; draws only if there are some.
  async look() {
    if (this.isStopped) return;
    try {
      for (const run of this.runs) this.info.set(run, await this.context.connection.ask("run", { subject: run }));
      await this.fetch();
      const watching = await this.context.connection.ask("alerts", { subject: this.name });
      if (this.isStopped) return;
      this.alerts = watching.alerts;
      this.watched = watching.watched;
      const info = this.info.get(this.name);
      const looked = watching.watched < watching.rows ? `, ${show(watching.watched)} of them checked for alerts` : "";
      this.context.status(`${plural(info.steps, "step")}${info.last === null ? "" : `, the last is ${show(info.last)}`}${looked}${info.unreadable ? `, ${plural(info.unreadable, "line")} could not be read` : ""}`, info.unreadable ? "bad" : "");
      const key = JSON.stringify([this.runs, [...this.info.values()].map((i) => i.steps), watching.alerts.length, this.shown, watching.watched === watching.rows]);
      if (key !== this.drawn) {
        this.drawn = key;
        this.draw();
      }
      this.timer = setTimeout(() => this.look(), watching.watched < watching.rows ? 50 : EVERY);
    } catch (error) {
      if (this.isStopped) return;
      this.context.trouble(error);
      this.context.status("Failed", "bad");
      this.timer = setTimeout(() => this.look(), EVERY);
    }
  }

  // The names that are drawn: those that were chosen, or the loss.
  get names() {
    const known = this.info.get(this.name)?.names ?? [];
    const chosen = current().series.filter((name) => known.includes(name));
    if (chosen.length) return chosen;
    const loss = known.find((name) => name === "loss") ?? known.find((name) => name.endsWith("loss")) ?? known[0];
    return loss === undefined ? [] : [loss];
  }

  async fetch(extra = []) {
    for (const run of this.runs) {
      const info = this.info.get(run);
      const wanted = [...new Set([...this.names, ...extra])].filter((name) => info.names.includes(name));
      const fresh = wanted.filter((name) => (this.columns.get(`${run}\n${name}`)?.rows ?? -1) !== info.steps);
      if (!fresh.length) continue;
      const answer = await this.context.connection.ask("series", { subject: run, names: fresh });
      for (const [name, { steps, values }] of Object.entries(answer.columns))
        this.columns.set(`${run}\n${name}`, { x: unpacked(steps).data, y: unpacked(values).data, rows: answer.rows });
    }
  }

  line(run, name) {
    return this.columns.get(`${run}\n${name}`);
  }

  draw() {
    const info = this.info.get(this.name);
    this.drawTree(info);
    if (!info.steps) {
      const text = "Nothing was written yet. What the run writes appears here by itself.";
      document.getElementById("view").replaceChildren(el("p", { class: "card quiet" }, text));
      return;
    }
    const several = this.runs.length > 1;
    const lines = this.runs.flatMap((run) => this.names.filter((name) => this.line(run, name)).map((name) => ({ name: several ? `${run}: ${name}` : name, ...this.line(run, name) })));
    lines.forEach((line, i) => (line.color = COLORS[i % COLORS.length]));
    const marks = this.alerts.map((alert) => ({ x: alert.step, text: alert.text }));
    const log = el("input", { type: "checkbox", id: "log" });
    const holder = el("div", {});
    const redraw = () => {
      holder.replaceChildren(
        timeline({
          lines,
          marks,
          name: this.names.join(", "),
          log: log.checked,
          width: this.context.width(),
          frame: this.frame,
          moved: (frame) => (this.frame = frame),
          pick: (step) => this.pick(step),
        }),
      );
    };
    log.addEventListener("change", redraw);
    redraw();
    const legend = el("div", { class: "legend" }, ...lines.map((line) => {
      const swatch = el("i", {});
      swatch.style.borderColor = line.color;
      return el("span", {}, swatch, line.name);
    }));
    const others = this.context.cards.filter((entry) => entry.kind === "run" && entry.name !== this.name);
    const beside = others.map((other) => {
      const box = el("input", { type: "checkbox" });
      box.checked = current().runs.includes(other.name);
      box.addEventListener("change", () => {
        const runs = current().runs.filter((run) => run !== other.name);
        update({ runs: box.checked ? [...runs, other.name] : runs });
      });
      return el("label", { class: "inline" }, box, other.name);
    });
    this.atStep = el("p", { class: "mono quiet", "aria-live": "polite" });
    const parts = [
      el("div", { class: "section-head" }, el("h2", {}, this.names.join(", ")), el("div", { class: "switch" }, ...beside, el("label", { class: "inline" }, log, "logarithmic"))),
      card("Over the steps", [legend, holder, this.atStep], { name: `${this.name}-steps`, note: "Zoom with the wheel or + and −, pan by dragging or with the arrow keys, 0 shows all. A click shows the numbers of a step.", code: this.code() }),
      (this.stepHolder ??= el("div", {})),
      this.alertList(info),
    ];
    this.familyHolder = el("div", {});
    if (info.families.length) parts.push(this.familyCard(info));
    const view = document.getElementById("view");
    const kept = document.activeElement?.id;
    view.replaceChildren(el("div", { class: "stack" }, ...parts));
    if (kept) document.getElementById(kept)?.focus();
  }

  // A run that was killed may have left half a line.
  readCode() {
    return `import json\nrows = [json.loads(line) for line in open(${JSON.stringify(this.context.card.file)}) if line.endswith("\\n")]`;
  }

  code() {
    return `${this.readCode()}\nvalues = [(row["step"], row.get(${JSON.stringify(this.names[0] ?? "loss")})) for row in rows]`;
  }

  pick(step) {
    const told = this.names.map((name) => {
      const line = this.line(this.name, name);
      let best = 0;
      line.x.forEach((x, i) => Math.abs(x - step) < Math.abs(line.x[best] - step) && (best = i));
      return `step ${show(line.x[best])}: ${name} ${Number.isFinite(line.y[best]) ? show(line.y[best]) : "not finite"}`;
    });
    this.atStep.textContent = told.join("; ");
    this.report(step);
  }

  // Everything that was written at a step, what is wrong there, and the reports and bundles beside the run.
  async report(step) {
    const answer = await this.context.connection.ask("step", { subject: this.name, step: Math.round(step) });
    const row = ([name, value]) => el("tr", {}, el("th", { scope: "row", class: "mono" }, el("button", { class: "link", type: "button", on: { click: () => update({ series: [name] }) } }, name)), el("td", {}, num(value) - num(value) === 0 ? show(value) : "not finite"));
    const beside = this.context.cards.filter((entry) => entry.kind === "report" || entry.about);
    const link = (entry) => el("button", { class: "link", type: "button", on: { click: () => update({ subject: entry.name, runs: [], series: [] }) } }, entry.name);
    this.stepHolder.replaceChildren(
      card(`Step ${show(answer.step)}`, [
        ...answer.alerts.map((alert) => el("p", {}, el("span", { class: "badge warning" }, alert.rule), ` ${alert.text}`)),
        ...(beside.length ? [el("p", {}, "Written beside this run: ", ...beside.map(link))] : []),
        el("div", { class: "scroll", tabindex: "0" }, el("table", {}, el("tbody", {}, ...Object.entries(answer.values).map(row)))),
      ], { name: `${this.name}-step-${answer.step}`, code: `${this.readCode()}\nstep = next(row for row in rows if row["step"] == ${answer.step})` }),
    );
  }

  alertList(info) {
    if (!this.alerts.length) return el("p", { class: "card fine" }, `No alert in the first ${plural(this.watched, "step")} of ${show(info.steps)}: rules nan, exploding, vanishing, dead, family, spike.`);
    return el(
      "div",
      { class: "card" },
      el("h3", {}, plural(this.alerts.length, "alert")),
      el(
        "ol",
        { class: "alerts" },
        ...this.alerts.slice(0, 100).map((alert) =>
          el(
            "li",
            {},
            el("span", { class: `badge ${alert.rule === "nan" ? "problem" : "warning"}` }, alert.rule),
            el("button", { class: "link", type: "button", on: { click: () => this.show(alert) } }, `step ${show(alert.step)}`),
            el("span", {}, alert.text),
          ),
        ),
      ),
    );
  }

  show(alert) {
    const steps = this.columns.values().next().value?.x;
    const span = steps?.length ? (steps[steps.length - 1] - steps[0]) / 10 || 10 : 10;
    this.frame = { from: Math.max(steps?.[0] ?? 0, alert.step - span / 2), to: Math.min(steps?.[steps.length - 1] ?? alert.step, alert.step + span / 2) };
    this.drawn = "";
    update({ series: [alert.name] });
    this.lookNow();
  }

  changed(now, before) {
    if (JSON.stringify([now.series, now.runs]) !== JSON.stringify([before.series, before.runs])) this.lookNow();
  }

  resized() {
    this.draw();
  }

  lookNow() {
    clearTimeout(this.timer);
    this.shown = JSON.stringify(current().series);
    this.look();
  }

  // One family of layers: a row for each layer, a column for each piece of time.
  familyCard(info) {
    const choice = el("select", { id: "family", "aria-label": "Family" }, ...info.families.map((family) => el("option", { value: family.name }, `${family.name} (${family.members.length})`)));
    choice.value = info.families.some((family) => family.name === this.family) ? this.family : info.families[0].name;
    const draw = async () => {
      this.family = choice.value;
      const { members } = info.families.find((family) => family.name === choice.value);
      await this.fetch(members);
      const columns = members.map((name) => this.line(this.name, name));
      const from = Math.min(...columns.map((column) => column.x[0] ?? Infinity));
      const to = Math.max(...columns.map((column) => column.x[column.x.length - 1] ?? -Infinity));
      const bins = Math.min(BINS, Math.max(...columns.map((column) => column.x.length), 1));
      const values = columns.map(({ x, y }) => {
        const [sum, count] = [new Array(bins).fill(0), new Array(bins).fill(0)];
        x.forEach((step, i) => {
          const bin = Math.min(bins - 1, Math.floor(((step - from) / (to - from || 1)) * bins));
          sum[bin] += y[i] > 0 ? Math.log10(y[i]) : NaN;
          count[bin] += 1;
        });
        return sum.map((total, bin) => (count[bin] ? total / count[bin] : NaN));
      });
      this.familyHolder.replaceChildren(
        heatMap({
          title: choice.value,
          values,
          rows: members,
          columns: Array.from({ length: bins }, (_, bin) => show(Math.round(from + ((bin + 0.5) / bins) * (to - from)))),
          column_title: "step",
          row_title: "",
          signed: false,
          pick: (i) => update({ series: [members[i]] }),
        }),
      );
    };
    choice.addEventListener("change", draw);
    draw();
    return card("Layers over time", [choice, this.familyHolder], { name: `${this.name}-family`, note: "The logarithm to base 10, a row for each layer. A layer that leaves its family has a color of its own; what is not finite is pink." });
  }

  drawTree(info) {
    const key = info.names.join("\n");
    if (this.treeFor !== key) {
      this.treeFor = key;
      const alarmed = new Set(this.alerts.map((alert) => alert.name));
      this.tree = buildTree({
        root: document.getElementById("tree"),
        empty: document.getElementById("tree-empty"),
        filter: document.getElementById("filter"),
        count: document.getElementById("filter-count"),
        paths: info.names,
        amount: () => "",
        severity: (name) => (alarmed.has(name) ? "warning" : undefined),
        select: (name) => update({ series: [name] }),
        nothing: "No step was written yet.",
      });
    }
    if (this.names.length) this.tree.mark(this.names[0]);
  }
}
