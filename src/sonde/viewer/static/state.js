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
};

let state = read();
const listeners = [];

function read() {
  try {
    const text = decodeURIComponent(location.hash.slice(1));
    return { ...USUAL, ...(text ? JSON.parse(text) : {}) };
  } catch {
    return { ...USUAL }; // a hand-made address
  }
}

function written(full) {
  const told = Object.entries(full).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(USUAL[name]));
  return told.length ? `#${encodeURIComponent(JSON.stringify(Object.fromEntries(told)))}` : "#";
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
  if (location.protocol !== "about:") history[replace ? "replaceState" : "pushState"](null, "", address);
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
