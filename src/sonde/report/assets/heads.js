// Heads: what every head of every layer attends to, as one matrix of layers by heads.

const HEAD_SCORES = {
  previous: "attention to the token before",
  first: "attention to the first token",
  same: "attention to the token itself",
};

function setUpHeads({ section, choice, body, data, select }) {
  const families = data.families
    .map((f) => ({ name: f.name, members: f.members.map((i) => data.sites[i]).filter((site) => site.heads) }))
    .filter((f) => f.members.length > 1);
  if (!families.length) return;
  section.hidden = false;
  const views = families.flatMap((f) => Object.entries(HEAD_SCORES).map(([score, what]) => ({ ...f, score, what })));
  const several = families.length > 1;
  choice.append(...views.map((v, i) => el("option", { value: i }, several ? `${v.what}, ${v.name}` : v.what)));
  const draw = () => {
    const view = views[Number(choice.value) || 0];
    const most = Math.max(...view.members.map((site) => site.heads[view.score].length));
    const values = view.members.map((site) =>
      Array.from({ length: most }, (_, h) => num(site.heads[view.score][h])),
    );
    const panel = {
      title: `${view.what} by layer and head`,
      values,
      rows: view.members.map((site) => layerOf(site.path, view.name)),
      row_title: "layer",
      columns: Array.from({ length: most }, (_, h) => String(h)),
      column_title: "head",
      signed: false,
      low: 0,
      high: null,
      pick: (i) => select(view.members[i].path),
    };
    const pattern = JSON.stringify(view.name);
    const code = `_, records = sonde.capture(f, ${pattern})(*args)\n# by head: attention_heads(f, ${pattern}) of sonde.tools`;
    body.replaceChildren(
      el(
        "div",
        { class: "card" },
        figure(
          `The share of each head's ${view.what}: the mean over all queries but the first, and over examples. Click a cell to show its layer.`,
          heatMap(panel),
        ),
        ...behind(panel, code),
      ),
    );
  };
  choice.addEventListener("change", draw);
  draw();
}
