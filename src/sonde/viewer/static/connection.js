// The conversation of the page: questions and answers. They go over a websocket to the server, by messages to the
// notebook that the page is in a frame of, or to answers that were saved in the page. Every question says all that it
// depends on, so it can be asked again, and its answer can be kept.

const RETRY = 1500; // milliseconds
const KEPT = 64e6; // characters of pictures that are kept for a saved page; those shown longest ago go first

export class Failed extends Error {
  constructor({ kind, text, source, code }) {
    super(text);
    Object.assign(this, { kind, source, code });
  }
}

// One text for a question, whatever was left out or in which order: what is null or an empty list is not said.
export function keyOf(op, args) {
  const said = Object.entries(args)
    .filter(([, value]) => value !== null && value !== undefined && !(Array.isArray(value) && !value.length))
    .sort(([a], [b]) => (a < b ? -1 : 1));
  return `${op} ${JSON.stringify(Object.fromEntries(said.map(([name, value]) => [name, plain(value)])))}`;
}

function plain(value) {
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.keys(value).sort().map((name) => [name, plain(value[name])]));
}

// How many characters the arrays of an answer take.
function pictureSize(answer) {
  return Object.values(answer ?? {}).reduce((sum, value) => sum + (value?.f32?.length ?? 0), 0);
}

// changed(state): "open", "lost", "refused" or "saved"
class Conversation {
  constructor(changed) {
    this.changed = changed;
    this.next = 1;
    this.waiting = new Map();
    this.answers = new Map(); // what was answered so far, by the key of the question
  }

  // The answer to a question; `news` is called with what is known before it is finished.
  ask(op, args = {}, { news = () => {}, signal = null } = {}) {
    const id = this.next++;
    const text = JSON.stringify({ id, op, args });
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { text, key: keyOf(op, args), since: performance.now(), resolve, reject, news });
      if (signal) signal.addEventListener("abort", () => this.isOpen && this.send(JSON.stringify({ id, op: "cancel" })));
      if (this.isOpen) this.send(text);
    });
  }

  // How long the oldest question has waited, in milliseconds; 0 if none waits.
  get waited() {
    const [oldest] = this.waiting.values();
    return oldest ? performance.now() - oldest.since : 0;
  }

  opened() {
    this.isOpen = true;
    this.changed("open");
    for (const question of this.waiting.values()) this.send(question.text);
  }

  take(message) {
    const question = this.waiting.get(message.id);
    if (!question) return;
    if (message.news) {
      question.news(message.news);
      return;
    }
    this.waiting.delete(message.id);
    if (message.error) question.reject(new Failed(message.error));
    else if (message.cancelled) question.resolve(null);
    else {
      this.keep(question.key, message.result);
      question.resolve(message.result);
    }
  }

  keep(key, result) {
    this.answers.delete(key); // the latest stand last
    this.answers.set(key, result);
    let total = 0;
    for (const [old, answer] of [...this.answers].reverse()) {
      const size = pictureSize(answer);
      total += size;
      if (size && total > KEPT && old !== key) this.answers.delete(old);
    }
  }
}

// With the server. A lost connection is tried again; what was not answered is asked once more.
class Served extends Conversation {
  constructor(address, changed) {
    super(changed);
    this.address = address;
    this.open();
  }

  send(text) {
    this.socket.send(text);
  }

  open() {
    this.socket = new WebSocket(this.address);
    let wasOpen = false;
    this.socket.onopen = () => {
      wasOpen = true;
      this.opened();
    };
    this.socket.onmessage = (event) => this.take(JSON.parse(event.data));
    this.socket.onclose = async () => {
      this.isOpen = false;
      // A browser does not tell why a socket was refused; the page itself is refused for the same reasons.
      const isRefused = !wasOpen && (await fetch(location.pathname + location.search).then((r) => r.status === 403, () => false));
      this.changed(isRefused ? "refused" : "lost");
      if (!isRefused) setTimeout(() => this.open(), RETRY);
    };
  }
}

// With the notebook that shows this page in a frame.
class InNotebook extends Conversation {
  constructor(changed) {
    super(changed);
    addEventListener("message", (event) => event.source === parent && this.take(event.data));
    queueMicrotask(() => this.opened());
  }

  send(text) {
    parent.postMessage({ sonde: text }, "*"); // the frame has no origin of its own, and questions hold no secret
  }
}

// With answers that were saved in the page.
class Saved extends Conversation {
  constructor(answers, changed) {
    super(changed);
    this.answers = new Map(Object.entries(answers));
    queueMicrotask(() => changed("saved"));
  }

  async ask(op, args = {}) {
    const key = keyOf(op, args);
    if (this.answers.has(key)) return this.answers.get(key);
    throw new Failed({ kind: "Not in this page", text: "This page was saved, and holds what was shown then. Open the program with sonde view to ask more." });
  }
}

export function connect(changed) {
  const saved = document.getElementById("saved");
  if (saved) return new Saved(JSON.parse(saved.textContent).answers, changed);
  if (location.protocol === "about:") return new InNotebook(changed);
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  return new Served(`${scheme}://${location.host}/ws${location.search}`, changed);
}
