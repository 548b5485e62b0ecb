"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
for (const f of data.findings) {
  const p = document.createElement("p");
  p.textContent = `${f.severity}: ${f.text} ${f.help}`;
  document.getElementById("page").append(p);
}
