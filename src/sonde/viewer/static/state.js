// What the page shows, as plain data in its address: what can be named can be shared, reopened, and undone with the
// browser's own buttons.

const USUAL = {
  subject: "",
  prompt: null, // null: what the program was opened with
  at: -1, // the position that is looked at
  view: "site",
  path: "",
  call: 0,
  part: 0,
  changes: [],
  other: "", // the second prompt, of patches and directions
  token: null, // the logit that is explained; null: the likeliest
  against: null,
  head: 0,
  show: "value", // or "gradient", "change"
  runs: [],
  series: [],
  feature: null, // of the dictionary at the path
  find: "", // the text that features are searched for
  graph: {}, // how the graph is pruned, pinned, grouped and laid out
};

const saved = document.getElementById("saved"); // a saved page begins where it was saved
const hasAddress = location.protocol !== "about:"; // a frame in a notebook has none of its own
const first = saved ? (JSON.parse(saved.textContent).state ?? {}) : {};
let state = read();
const listeners = [];

function read() {
  try {
    const text = decodeURIComponent(location.hash.slice(1));
    return { ...USUAL, ...(text ? JSON.parse(text) : first) };
  } catch {
    return { ...USUAL }; // a hand-made address
  }
}

// What is not as usual.
export function special(full = state) {
  return Object.fromEntries(Object.entries(full).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(USUAL[name])));
}

function written(full) {
  const told = special(full);
  return Object.keys(told).length ? `#${encodeURIComponent(JSON.stringify(told))}` : "#";
}

export function current() {
  return state;
}

// Changes some of the state. `replace` puts it in place of the last entry of the history: for what is not worth undoing.
export function update(some, { replace = false } = {}) {
  const before = state;
  state = { ...state, ...some };
  const address = written(state);
  if (address === written(before)) return;
  if (hasAddress) history[replace ? "replaceState" : "pushState"](null, "", address);
  for (const listener of listeners) listener(state, before);
}

export function onChange(listener) {
  listeners.push(listener);
}

function returned() {
  const before = state;
  state = read();
  for (const listener of listeners) listener(state, before);
}

addEventListener("popstate", returned);
addEventListener("hashchange", () => written(read()) !== written(state) && returned());

// The lists of changes that were left, and those that were undone.
const [past, undone] = [[], []];

export function putChanges(changes) {
  past.push(state.changes);
  undone.length = 0;
  update({ changes });
}

export function addChange(change) {
  putChanges([...state.changes, { on: true, ...change }]);
}

export const undo = { possible: () => past.length > 0, act: () => step(past, undone) };
export const redo = { possible: () => undone.length > 0, act: () => step(undone, past) };

function step(from, to) {
  if (!from.length) return;
  to.push(state.changes);
  update({ changes: from.pop() });
}

// The changes that are switched on, without what only the page needs.
export function activeChanges() {
  return state.changes.filter((change) => change.on !== false);
}

// What every question about a run says.
export function runOf(full = state) {
  return { subject: full.subject, prompt: full.prompt, changes: full.changes.filter((c) => c.on !== false) };
}

export function explained(full = state) {
  return { position: full.at, token: full.token, against: full.against };
}
