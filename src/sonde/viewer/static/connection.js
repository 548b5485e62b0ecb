// The conversation with the server: questions and answers over one websocket. A lost connection is tried again; what
// was not answered is asked once more, since every question says all that it depends on.

const RETRY = 1500; // milliseconds

export class Failed extends Error {
  constructor({ kind, text, source, code }) {
    super(text);
    Object.assign(this, { kind, source, code });
  }
}

export class Connection {
  // changed(state): "open", "lost" or "refused"
  constructor(address, changed) {
    this.address = address;
    this.changed = changed;
    this.next = 1;
    this.waiting = new Map();
    this.open();
  }

  open() {
    this.socket = new WebSocket(this.address);
    let wasOpen = false;
    this.socket.onopen = () => {
      wasOpen = true;
      this.changed("open");
      for (const question of this.waiting.values()) this.socket.send(question.text);
    };
    this.socket.onmessage = (event) => this.take(JSON.parse(event.data));
    this.socket.onclose = async () => {
      // A browser does not tell why a socket was refused; the page itself is refused for the same reasons.
      const isRefused = !wasOpen && (await fetch(location.pathname + location.search).then((r) => r.status === 403, () => false));
      this.changed(isRefused ? "refused" : "lost");
      if (!isRefused) setTimeout(() => this.open(), RETRY);
    };
  }

  // The answer to a question; `news` is called with what is known before it is finished.
  ask(op, args = {}, { news = () => {}, signal = null } = {}) {
    const id = this.next++;
    const text = JSON.stringify({ id, op, args });
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { text, resolve, reject, news });
      if (signal)
        signal.addEventListener("abort", () => {
          if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ id, op: "cancel" }));
        });
      if (this.socket.readyState === WebSocket.OPEN) this.socket.send(text);
    });
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
    else question.resolve(message.result);
  }
}
