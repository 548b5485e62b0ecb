// Puts the page together: the state in the address decides what is asked, and what is drawn.

import { buildTree, el, num, percent, show, svg } from "/static/shared.js";
import { attentionView } from "/static/attention.js";
import { changesList } from "/static/changeslist.js";
import { Connection } from "/static/connection.js";
import { compareView } from "/static/compare.js";
import { edgesView } from "/static/edges.js";
import { copyText } from "/static/exporting.js";
import { findingsView } from "/static/findings.js";
import { generateView } from "/static/generate.js";
import { attributionView, lensView } from "/static/layers.js";
import { siteView } from "/static/siteview.js";
import { RunPage } from "/static/runview.js";
import { activeChanges, current, onChange, runOf, update } from "/static/state.js";
import { sweepView } from "/static/sweep.js";
import { nextTokens, promptBox, resultLines, tokensLegend, tokenStrip, visible } from "/static/text.js";

const $ = (id) => document.getElementById(id);
const VIEWS = [
  { name: "site", text: "Site", draw: siteView, on: () => true },
  { name: "attention", text: "Attention", draw: attentionView, on: (card) => card.reads },
  { name: "lens", text: "Logit lens", draw: lensView, on: (card) => card.lens },
  { name: "attribution", text: "Attribution", draw: attributionView, on: (card) => card.attribution },
  { name: "sweep", text: "Sweep", draw: sweepView, on: () => true },
  { name: "edges", text: "Graph", draw: edgesView, on: (card) => card.generates },
  { name: "compare", text: "Compare", draw: compareView, on: (card) => context.cards.some((other) => other.kind === "program" && other.name !== card.name) },
  { name: "generate", text: "Generate", draw: generateView, on: (card) => card.generates },
  { name: "findings", text: "Findings", draw: findingsView, on: () => true },
];
// What a view depends on; if none of it changed, the view stays as it is.
const NEEDS = {
  site: ["path", "call", "part", "show", "at", "token", "against"],
  attention: ["path", "head", "at"],
  lens: ["at"],
  attribution: ["at", "token", "against"],
  sweep: ["at", "token", "against"],
  edges: ["at", "token", "against"],
  compare: [],
  generate: [],
  findings: [],
};

const context = {
  connection: null,
  card: null,
  edges: [],
  tokens: [],
  reading: null,
  cards: [],
  sites: [],
  severity: new Map(),
  width: () => Math.max(220, $("main").clientWidth - 44),
  show: (content) => $("view").replaceChildren(content),
  family: (path) => path.replace(/\d+/, "*"),
  familyOf: (path) => [...new Set(context.sites.filter((site) => context.family(site.path) === context.family(path)).map((site) => site.path))],
  families: () => [...new Set(context.sites.map((site) => context.family(site.path)).filter((name) => name.includes("*")))],
  explainedText,
  marks: (findings) => {
    context.severity = new Map(findings.map((found) => [found.path, found.severity]).reverse());
    tree?.refresh();
  },
};
let tree = null;
let asked = 0; // the number of the latest question about a run: older answers are not drawn

function explainedText() {
  if (!context.reading?.tokens.length) return "What is explained is the number that the program returns.";
  const { at, token, against } = current();
  const position = at < 0 ? context.tokens.length + at : at;
  const known = new Map(context.tokens.flatMap((entry) => entry.next).map((likely) => [likely.id, likely.text]));
  const name = (id) => (known.has(id) ? JSON.stringify(known.get(id)) : `token ${id}`);
  const target = token === null ? "the likeliest token" : name(token);
  return `Explained is the logit of ${target}${against === null ? "" : ` minus that of ${name(against)}`} after position ${position}, ${visible(context.tokens[position]?.text ?? "")}. Choose others with + and − beside the tokens that are likely next.`;
}

function status(text, kind = "") {
  $("status").textContent = text;
  $("status").className = `status ${kind}`;
}

function trouble(error) {
  const box = $("trouble");
  box.hidden = !error;
  if (!error) return;
  const where = error.source ? ` (${error.source}${error.code ? `: ${error.code}` : ""})` : "";
  box.replaceChildren(
    el("strong", {}, `${error.kind ?? "Error"}: `),
    el("span", {}, `${error.message}${where}`),
    el("button", { class: "tool", type: "button", "aria-label": "Close", on: { click: () => trouble(null) } }, "×"),
  );
}

// ------------------------------------------------------------------------------------------------------------ runs

const RUN = ["subject", "prompt", "changes"];
const differs = (names, a, b) => names.some((name) => JSON.stringify(a[name]) !== JSON.stringify(b[name]));

async function loadRun() {
  const number = ++asked;
  const isOld = () => number !== asked;
  status("Running …", "busy");
  drawPrompt();
  try {
    const reading = await context.connection.ask("read", runOf());
    if (isOld()) return;
    context.reading = reading;
    context.tokens = reading.tokens;
    trouble(null);
    drawText();
    const answer = await context.connection.ask("sites", runOf());
    if (isOld()) return;
    context.sites = answer.sites;
    drawTree();
    drawChanges();
    status(`${answer.sites.length.toLocaleString("en")} arrays, ${(answer.bytes / 1e6).toFixed(1)} MB${answer.complete ? "" : ", recorded when clicked"}`);
    if (!context.sites.some((site) => site.path === current().path)) update({ path: firstPath() }, { replace: true });
    await drawView();
  } catch (error) {
    if (isOld()) return;
    status("Failed", "bad");
    trouble(error);
  }
}

function firstPath() {
  return (context.sites.find((site) => site.attention) ?? context.sites[0])?.path ?? "";
}

function run(prompt) {
  const usual = context.card.prompt;
  update({ prompt: prompt === usual ? null : prompt, at: -1, token: null, against: null });
}

// --------------------------------------------------------------------------------------------------------- drawing

let promptFor = null;

function drawPrompt() {
  const key = `${current().subject}\n${current().prompt}`;
  if (promptFor === key && $("prompt")) return;
  promptFor = key;
  $("text").hidden = false;
  const parts = [el("div", { id: "text-body", class: "text-body" })];
  if (context.card.prompt !== null) parts.unshift(promptBox(context.card, run));
  $("text").replaceChildren(...parts);
}

function drawText() {
  const { reading } = context;
  const body = $("text-body");
  if (!body) return;
  if (!reading.tokens.length) {
    body.replaceChildren(el("h3", {}, "Result"), resultLines(reading.result));
    return;
  }
  body.replaceChildren(
    el("div", { class: "token-side" }, tokenStrip(reading), tokensLegend(reading.tokens.length)),
    nextTokens(reading, (some) => update(some)),
  );
}

async function drawChanges() {
  const { changes, subject, prompt } = current();
  $("changes").hidden = !changes.length;
  if (!changes.length) return;
  const { texts } = await context.connection.ask("python", { subject, prompt, changes });
  $("changes").replaceChildren(changesList(context.connection, texts));
}

const SPARK = { w: 46, h: 14 };

// The scale along positions; after changes, a bar for how far the site has moved.
function glance(path) {
  const site = byPath.get(path);
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

let byPath = new Map();
let treeFor = "";

function drawTree() {
  byPath = new Map([...context.sites].reverse().map((site) => [site.path, site]));
  const paths = [...byPath.keys()].reverse();
  const key = paths.join("\n");
  if (treeFor !== key) {
    treeFor = key;
    context.severity = new Map();
    tree = buildTree({
      root: $("tree"),
      empty: $("tree-empty"),
      filter: $("filter"),
      count: $("filter-count"),
      paths,
      amount: (path) => {
        const site = byPath.get(path);
        if (!site) return "";
        if (activeChanges().length && site.moved !== undefined) return site.moved === null ? "–" : percent(num(site.moved));
        return site.rms === undefined ? "" : show(site.rms);
      },
      severity: (path) => (byPath.get(path)?.bad ? "problem" : context.severity.get(path)),
      select: (path) => update({ path, call: 0, part: 0, view: current().view === "attention" && byPath.get(path)?.attention ? "attention" : "site" }),
      glance,
    });
  } else tree.refresh();
  tree.mark(current().path);
}

function drawTabs() {
  const tabs = VIEWS.filter((view) => view.on(context.card));
  const { view } = current();
  $("views").replaceChildren(
    ...tabs.map((tab, i) =>
      el(
        "button",
        {
          class: `tab${tab.name === view ? " on" : ""}`,
          type: "button",
          role: "tab",
          id: `tab-${tab.name}`,
          "aria-selected": String(tab.name === view),
          "aria-controls": "view",
          tabindex: tab.name === view ? "0" : "-1",
          on: {
            click: () => update({ view: tab.name }),
            keydown: (event) => {
              const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
              if (!step) return;
              event.preventDefault();
              const next = tabs[(i + step + tabs.length) % tabs.length];
              update({ view: next.name });
              $(`tab-${next.name}`).focus();
            },
          },
        },
        tab.text,
      ),
    ),
  );
  $("view").setAttribute("aria-labelledby", `tab-${view}`);
}

let drawing = 0;

async function drawView() {
  const number = ++drawing;
  drawTabs();
  const state = current();
  const view = VIEWS.find((entry) => entry.name === state.view && entry.on(context.card)) ?? VIEWS[0];
  if (view.name === "site" && !state.path) {
    $("view").replaceChildren(el("p", { class: "card quiet" }, "The program has no sites. Mark values with sonde.sow, or open it with --inside."));
    return;
  }
  $("view").setAttribute("aria-busy", "true");
  try {
    const content = await view.draw(context);
    if (number !== drawing) return;
    $("view").replaceChildren(content);
    trouble(null);
  } catch (error) {
    if (number !== drawing) return;
    trouble(error);
    $("view").replaceChildren(el("p", { class: "card quiet" }, `This cannot be shown: ${error.message}`));
  } finally {
    if (number === drawing) $("view").removeAttribute("aria-busy");
  }
}

// ----------------------------------------------------------------------------------------------------------- start

onChange((now, before) => {
  if (now.subject !== before.subject) return choose();
  if (runPage) return differs(["series", "runs"], now, before) && runPage.changed();
  if (differs(RUN, now, before)) return loadRun();
  if (differs(["at", "token", "against"], now, before) && context.reading) drawText();
  if (now.path !== before.path) tree?.mark(now.path);
  if (now.view !== before.view || differs(NEEDS[now.view] ?? [], now, before)) drawView();
});

function choose() {
  const cards = context.cards;
  context.card = cards.find((card) => card.name === current().subject) ?? cards[0];
  $("subject").value = context.card.name;
  document.title = `${context.card.name} · Sonde`;
  if (current().subject !== context.card.name) update({ subject: context.card.name }, { replace: true });
  else open();
}

let runPage = null;

function open() {
  runPage?.stop();
  runPage = null;
  treeFor = "";
  if (context.card.kind === "run") {
    $("view").replaceChildren();
    runPage = new RunPage({ ...context, status, trouble });
    runPage.start();
  } else {
    document.querySelector(".side-head label").textContent = "Sites";
    loadRun();
  }
}

async function start() {
  const hello = await context.connection.ask("hello");
  context.cards = hello.subjects;
  context.edges = hello.edges;
  $("subject").replaceChildren(...hello.subjects.map((card) => el("option", { value: card.name }, card.name)));
  $("subject-label").hidden = hello.subjects.length < 2;
  $("title").textContent = hello.subjects.length < 2 ? hello.subjects[0].name : "Sonde";
  $("subject").addEventListener("change", () => update({ subject: $("subject").value, path: "", prompt: null, changes: [], at: -1, token: null, against: null, series: [], runs: [] }));
  choose();
}

$("copy-address").addEventListener("click", async () => {
  await copyText(location.href);
  $("copy-address").textContent = "Copied";
  setTimeout(() => ($("copy-address").textContent = "Copy address"), 1200);
});

let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  if (runPage) runPage.draw();
  else if (context.card) drawView();
});

const scheme = location.protocol === "https:" ? "wss" : "ws";
let isFirst = true;
context.connection = new Connection(`${scheme}://${location.host}/ws${location.search}`, (state) => {
  document.body.dataset.connection = state;
  if (state === "open" && isFirst) {
    isFirst = false;
    start().catch(trouble);
  } else if (state === "open") status("Connected again");
  else if (state === "lost") status("The server has stopped. What is shown stays; the page connects again when the server is back.", "bad");
  else status("The server refuses this address: open the one that sonde view printed.", "bad");
});
