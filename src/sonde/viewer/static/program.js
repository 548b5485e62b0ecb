// A program on the page: its text, its tree of sites, its changes, and the views of them. The state in the address decides
// what is asked, and what is drawn.

import { buildTree, el, num, percent, show, svg } from "/static/shared.js";
import { attentionView } from "/static/attention.js";
import { changesList } from "/static/changeslist.js";
import { compareView } from "/static/compare.js";
import { featuresView } from "/static/features.js";
import { findingsView } from "/static/findings.js";
import { generateView } from "/static/generate.js";
import { graphView } from "/static/graph.js";
import { attributionView, lensView } from "/static/layers.js";
import { siteOf, siteView } from "/static/siteview.js";
import { activeChanges, current, explained, redo, runOf, undo, update } from "/static/state.js";
import { sweepView } from "/static/sweep.js";
import { nextTokens, promptBox, resultLines, tokensLegend, tokenStrip, visible } from "/static/text.js";

const $ = (id) => document.getElementById(id);
// Each view with what it depends on: if none of it changed, the view stays as it is.
const VIEWS = [
  { name: "site", text: "Site", draw: siteView, on: () => true, needs: ["path", "call", "part", "show", "at", "token", "against"] },
  { name: "attention", text: "Attention", draw: attentionView, on: (card) => card.reads, needs: ["path", "head", "at"] },
  { name: "lens", text: "Logit lens", draw: lensView, on: (card) => card.lens, needs: ["at"] },
  { name: "attribution", text: "Attribution", draw: attributionView, on: (card) => card.attribution, needs: ["at", "token", "against"] },
  { name: "sweep", text: "Sweep", draw: sweepView, on: () => true, needs: ["at", "token", "against"] },
  { name: "features", text: "Features", draw: featuresView, on: (card) => card.dictionaries.length > 0, needs: ["path", "feature", "find", "at"] },
  { name: "graph", text: "Graph", draw: graphView, on: (card) => card.graphs.length > 0, needs: ["at", "token", "against"] },
  { name: "compare", text: "Compare", draw: compareView, on: (card, cards) => cards.some((other) => other.kind === "program" && other.name !== card.name), needs: [] },
  { name: "generate", text: "Generate", draw: generateView, on: (card) => card.generates, needs: [] },
  { name: "findings", text: "Findings", draw: findingsView, on: () => true, needs: [] },
];
const RUN = ["prompt", "changes"];
const differs = (names, a, b) => names.some((name) => JSON.stringify(a[name]) !== JSON.stringify(b[name]));
const SPARK = { w: 46, h: 14 };

export class ProgramPage {
  // context: {connection, card, cards, edges, status, trouble}, to which what is known of the run is added
  constructor(context) {
    this.context = Object.assign(context, {
      tokens: [],
      reading: null,
      sites: [],
      severity: new Map(),
      show: (content) => $("view").replaceChildren(content),
      family: (path) => path.replace(/\d+/, "*"),
      familyOf: (path) => [...new Set(context.sites.filter((site) => context.family(site.path) === context.family(path)).map((site) => site.path))],
      families: () => [...new Set(context.sites.map((site) => context.family(site.path)).filter((name) => name.includes("*")))],
      explainedText: () => this.explainedText(),
      python: (code) => this.python(code),
      marks: (findings) => {
        context.severity = new Map(findings.map((finding) => [finding.path, finding.severity]).reverse());
        this.tree?.refresh();
      },
    });
    this.byPath = new Map(); // what is known of a site before the program runs
    this.glances = new Map(); // and its scale in this run
    this.asked = 0; // the number of the latest question about a run: older answers are not drawn
    this.drawing = 0; // the same for views
  }

  start() {
    document.querySelector(".side-head label").textContent = "Sites";
    return this.load();
  }

  stop() {
    this.asked += 1;
    this.drawing += 1;
  }

  changed(now, before) {
    if (differs(RUN, now, before)) return this.load();
    if (this.isLoading) return this.tree?.mark(now.path); // the view is drawn when the text is there
    if (differs(["at", "token", "against"], now, before) && this.context.reading) this.drawText();
    if (now.path !== before.path) this.tree?.mark(now.path);
    const { needs } = VIEWS.find((view) => view.name === now.view) ?? VIEWS[0];
    return (now.view !== before.view || differs(needs, now, before)) && this.drawView();
  }

  resized() {
    this.drawView();
  }

  explainedText() {
    const { reading, tokens } = this.context;
    if (!reading?.tokens.length) return "What is explained is the number that the program returns.";
    const { at, token, against } = current();
    const position = at < 0 ? tokens.length + at : at;
    const known = new Map(tokens.flatMap((entry) => entry.next).map((likely) => [likely.id, likely.text]));
    const name = (id) => (known.has(id) ? JSON.stringify(known.get(id)) : `token ${id}`);
    const target = token === null ? "the likeliest token" : name(token);
    return `Explained is the logit of ${target}${against === null ? "" : ` minus that of ${name(against)}`} after position ${position}, “${visible(tokens[position]?.text ?? "")}”. Choose others with + and − beside the tokens that are likely next.`;
  }

  // Python as it runs by itself: with the prompt and the changes of the page, in which `f` and `args` are these, and
  // `metric`, if the code reads it, is the number that is explained.
  async python(code) {
    const { subject, prompt, changes } = current();
    const isExplained = /\bmetric\b/.test(code);
    const answer = await this.context.connection.ask("python", { subject, prompt, changes, explained: isExplained ? explained() : null });
    return `${answer.start}\n\n${isExplained ? `${answer.metric}\n` : ""}${code}`;
  }

  // ---------------------------------------------------------------------------------------------------------- runs

  async load() {
    const number = ++this.asked;
    const isOld = () => number !== this.asked;
    const { connection, status, trouble } = this.context;
    status("Running …", "busy");
    this.isLoading = true;
    this.drawPrompt();
    try {
      await this.loadSites();
      if (isOld()) return;
      const state = current();
      // The first run records the site that is shown with the result: one program is compiled for both.
      if (state.view === "site" && state.show === "value" && state.path) await connection.ask("site", siteOf(state));
      const reading = isOld() ? null : await connection.ask("read", runOf());
      if (isOld()) return;
      this.context.reading = reading;
      this.context.tokens = reading.tokens;
      trouble(null);
      this.drawText();
      this.drawChanges();
      this.isLoading = false;
      await this.drawView();
      if (isOld()) return;
      status("Recording …", "busy");
      const { glances, bytes } = await connection.ask("glances", runOf());
      if (isOld()) return;
      this.glances = new Map(this.context.sites.map((site, i) => [site.path, glances[i]]).reverse());
      this.tree.refresh();
      status(`${glances.length.toLocaleString("en")} arrays, ${(bytes / 1e6).toFixed(1)} MB${this.isComplete ? "" : ", recorded when clicked"}`);
    } catch (error) {
      if (isOld()) return;
      this.isLoading = false;
      status("Failed", "bad");
      trouble(error);
      const advice = activeChanges().length ? "Undo the last change." : this.context.card.prompt !== null ? "Type another prompt." : "Mend the program, and start sonde view again.";
      this.context.show(el("p", { class: "card quiet" }, `This run failed: the message is above. ${advice}`));
      this.drawChanges().catch(() => {}); // what was changed last can be undone
    }
  }

  // The tree needs no run, and is the same for every run on a prompt.
  async loadSites() {
    const { subject, prompt } = current();
    const key = JSON.stringify(prompt);
    if (this.sitesFor !== key) {
      const { sites, first, complete } = await this.context.connection.ask("sites", { subject, prompt });
      [this.context.sites, this.first, this.isComplete, this.sitesFor] = [sites, first, complete, key];
      this.drawTree();
    }
    if (!this.context.sites.some((site) => site.path === current().path)) update({ path: this.first }, { replace: true });
  }

  // ------------------------------------------------------------------------------------------------------- drawing

  drawPrompt() {
    const { card } = this.context;
    const run = (prompt) => update({ prompt: prompt === card.prompt ? null : prompt, at: -1, token: null, against: null });
    const { prompt } = current();
    if (this.promptFor === prompt && $("text-body")) return;
    this.promptFor = prompt;
    $("text").hidden = false;
    $("text").replaceChildren(...(card.prompt === null ? [] : [promptBox(card, run)]), el("div", { id: "text-body", class: "text-body" }));
  }

  drawText() {
    const { reading, card } = this.context;
    const body = $("text-body");
    const about = card.about ? el("div", {}, el("h2", { class: "small" }, "What was found before"), el("pre", {}, card.about)) : null;
    if (!reading.tokens.length) body.replaceChildren(el("div", {}, el("h2", { class: "small" }, "Result"), resultLines(reading.result)), ...[about].filter(Boolean));
    else body.replaceChildren(el("div", { class: "token-side" }, tokenStrip(reading), tokensLegend(reading.tokens.length)), nextTokens(reading, (some) => update(some)));
  }

  async drawChanges() {
    const { changes, subject, prompt } = current();
    $("changes").hidden = !changes.length && !undo.possible() && !redo.possible();
    if ($("changes").hidden) return;
    $("changes").replaceChildren(changesList(this.context, []));
    const { texts } = await this.context.connection.ask("python", { subject, prompt, changes });
    $("changes").replaceChildren(changesList(this.context, texts));
  }

  // The scale along positions; after changes, a bar for how far the site has moved.
  glance(path) {
    const site = this.glances.get(path);
    if (!site) return null;
    if (activeChanges().length && site.moved !== undefined && site.moved !== null) {
      const bar = el("span", { class: "moved", "aria-hidden": "true" }, el("i", {}));
      bar.firstChild.style.width = `${Math.min(100, 100 * num(site.moved))}%`;
      return bar;
    }
    if (!site.spark || site.spark.length < 2) return el("span", { class: "spark" });
    const step = SPARK.w / (site.spark.length - 1);
    const points = site.spark.map((v, i) => `${(i * step).toFixed(1)},${(SPARK.h - 1 - (v / 15) * (SPARK.h - 2)).toFixed(1)}`);
    return svg("svg", { class: "spark", viewBox: `0 0 ${SPARK.w} ${SPARK.h}`, "aria-hidden": "true" }, svg("polyline", { points: points.join(" ") }));
  }

  amount(path) {
    const site = this.glances.get(path);
    if (!site) return "";
    if (site.idle) return "did not run";
    if (activeChanges().length && site.moved !== undefined) return site.moved === null ? "–" : percent(num(site.moved));
    return site.rms === undefined ? "" : show(site.rms);
  }

  drawTree() {
    this.byPath = new Map([...this.context.sites].reverse().map((site) => [site.path, site]));
    const paths = [...this.byPath.keys()].reverse();
    const key = paths.join("\n");
    if (this.treeFor === key) this.tree.refresh();
    else {
      this.treeFor = key;
      this.context.severity = new Map();
      this.tree = buildTree({
        root: $("tree"),
        empty: $("tree-empty"),
        filter: $("filter"),
        count: $("filter-count"),
        paths,
        amount: (path) => this.amount(path),
        severity: (path) => (this.glances.get(path)?.bad ? "problem" : this.context.severity.get(path)),
        select: (path) => update({ path, call: 0, part: 0, view: current().view === "attention" && this.byPath.get(path)?.square ? "attention" : "site" }),
        glance: (path) => this.glance(path),
      });
    }
    this.tree.mark(current().path);
  }

  drawTabs() {
    const tabs = VIEWS.filter((view) => view.on(this.context.card, this.context.cards));
    const { view } = current();
    const move = (event, i) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = tabs[(i + step + tabs.length) % tabs.length];
      update({ view: next.name });
      $(`tab-${next.name}`).focus();
    };
    const isOn = (tab) => tab.name === view;
    $("views").hidden = false;
    $("views").replaceChildren(
      ...tabs.map((tab, i) =>
        el(
          "button",
          {
            class: `tab${isOn(tab) ? " on" : ""}`,
            type: "button",
            role: "tab",
            id: `tab-${tab.name}`,
            "aria-selected": String(isOn(tab)),
            "aria-controls": "view",
            tabindex: isOn(tab) ? "0" : "-1",
            on: { click: () => update({ view: tab.name }), keydown: (event) => move(event, i) },
          },
          tab.text,
        ),
      ),
    );
    const on = $(`tab-${view}`); // on a phone the tabs scroll
    if (on) $("views").scrollLeft = on.offsetLeft + on.offsetWidth / 2 - $("views").clientWidth / 2 - $("views").offsetLeft;
    $("view").setAttribute("role", "tabpanel");
    $("view").setAttribute("aria-labelledby", `tab-${view}`);
  }

  async drawView() {
    const number = ++this.drawing;
    const focused = document.activeElement?.id;
    this.drawTabs();
    if (focused?.startsWith("tab-")) $(focused)?.focus();
    const state = current();
    const view = VIEWS.find((entry) => entry.name === state.view && entry.on(this.context.card, this.context.cards)) ?? VIEWS[0];
    if (view.name === "site" && !state.path) {
      this.context.show(el("p", { class: "card quiet" }, "The program has no sites. Mark values with sonde.sow, or open it with --inside."));
      return;
    }
    $("view").setAttribute("aria-busy", "true");
    try {
      const content = await view.draw(this.context);
      if (number === this.drawing) this.context.show(content);
    } catch (error) {
      if (number !== this.drawing) return;
      this.context.trouble(error);
      this.context.show(el("p", { class: "card quiet" }, `This cannot be shown: ${error.message}`));
    } finally {
      if (number === this.drawing) $("view").removeAttribute("aria-busy");
    }
  }
}
