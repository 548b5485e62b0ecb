// A report that was opened: its own page, in a frame without rights.

import { el } from "/static/shared.js";

export class ReportPage {
  constructor({ card, status }) {
    this.card = card;
    this.status = status;
  }

  start() {
    const token = new URLSearchParams(location.search).get("token") ?? "";
    const source = `/report?${new URLSearchParams({ token, subject: this.card.name })}`;
    this.status("A saved page");
    document.querySelector(".frame").classList.add("alone");
    document.getElementById("view").replaceChildren(el("iframe", { class: "report", title: this.card.name, src: source, sandbox: "allow-scripts" }));
  }

  stop() {
    document.querySelector(".frame").classList.remove("alone");
  }

  changed() {}

  resized() {}
}
