// Starts the page: connects, lists what was opened, and hands over to the page of what is chosen.

import { el } from "/static/shared.js";
import { connect } from "/static/connection.js";
import { copyText, saveBlob } from "/static/exporting.js";
import { ProgramPage } from "/static/program.js";
import { ReportPage } from "/static/reportpage.js";
import { RunPage } from "/static/runview.js";
import { current, onChange, special, update } from "/static/state.js";
import { StorePage } from "/static/storepage.js";

const $ = (id) => document.getElementById(id);
const PAGES = { program: ProgramPage, run: RunPage, store: StorePage, report: ReportPage };
const ELSEWHERE = { path: "", call: 0, part: 0, prompt: null, changes: [], at: -1, token: null, against: null, head: 0, series: [], runs: [], feature: null, find: "", graph: {} };
let cards = [];
let page = null;
let settled = ["Connecting …", ""]; // what the status says when nothing is awaited

function status(text, kind = "") {
  settled = [text, kind];
  tellStatus(text, kind);
}

function tellStatus(text, kind) {
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

const SLOW = 400; // milliseconds after which it is said that an answer takes its time

// A question that takes long says so: the first of its kind compiles a program.
function watchQuestions(connection) {
  let isSlow = false;
  setInterval(() => {
    if (!connection.isOpen) return;
    const waited = connection.waited;
    if (waited > SLOW) {
      tellStatus(`Computing … ${Math.round(waited / 1000)} s`, "busy");
      isSlow = true;
    } else if (isSlow) {
      isSlow = false;
      tellStatus(...settled);
    }
  }, SLOW);
}

function choose() {
  const card = cards.find((one) => one.name === current().subject) ?? cards[0];
  $("subject").value = card.name;
  document.title = `${card.name} · Sonde`;
  if (current().subject !== card.name) return update({ subject: card.name }, { replace: true });
  page?.stop();
  trouble(null);
  $("tree").replaceChildren();
  for (const id of ["text", "changes", "views"]) $(id).hidden = true;
  $("view").replaceChildren();
  for (const name of ["role", "aria-labelledby"]) $("view").removeAttribute(name);
  page = new PAGES[card.kind]({ connection, card, cards, edges: hello.edges, width, status, trouble });
  return page.start();
}

onChange((now, before) => {
  if (now.subject !== before.subject) choose();
  else page?.changed(now, before);
});

let hello = null;

async function start() {
  hello = await connection.ask("hello");
  cards = hello.subjects;
  $("subject").replaceChildren(...cards.map((card) => el("option", { value: card.name }, card.name)));
  $("subject-label").hidden = cards.length < 2;
  $("title").textContent = cards.length < 2 ? cards[0].name : "Sonde";
  $("subject").addEventListener("change", () => update({ ...ELSEWHERE, subject: $("subject").value }));
  await choose();
}

function told(button, text) {
  const before = button.textContent;
  button.textContent = text;
  setTimeout(() => (button.textContent = before), 1200);
}

$("copy-address").addEventListener("click", async () => {
  await copyText(location.href);
  told($("copy-address"), "Copied");
});

// The page as a file of its own: what was shown so far can be looked at again without the program.
$("save-page").addEventListener("click", async () => {
  const { text } = await connection.ask("empty_page", { subject: current().subject });
  const data = JSON.stringify({ answers: Object.fromEntries([...connection.answers].filter(([key]) => !key.startsWith("empty_page"))), state: special() });
  const safe = data.replace(/[<>&\u2028\u2029]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
  const whole = text.replace(/(<script type="application\/json" id="saved">).*?(<\/script>)/s, (_, open, close) => open + safe + close);
  saveBlob(new Blob([whole], { type: "text/html" }), `${current().subject.replace(/[^\w.-]+/g, "-")}.html`);
  told($("save-page"), "Saved");
});

// How wide a picture may be.
function width() {
  return Math.max(220, $("main").clientWidth - 44);
}

let before = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === before) return;
  before = innerWidth;
  page?.resized();
});

let isFirst = true;
const connection = connect((state) => {
  document.body.dataset.connection = state;
  if ((state === "open" || state === "saved") && isFirst) {
    isFirst = false;
    $("save-page").hidden = state === "saved";
    $("copy-address").hidden = location.protocol === "about:";
    start().catch(trouble);
  } else if (state === "open") status("Connected again");
  else if (state === "lost") tellStatus("The server has stopped. What is shown stays; the page connects again when the server is back.", "bad");
  else if (state === "refused") tellStatus("The server refuses this address: open the one that sonde view printed.", "bad");
});
watchQuestions(connection);
