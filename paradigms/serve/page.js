"use strict";

// The page asks the service and draws what it answers; texts are only ever set as text. The state below is the
// whole of what is shown, and the page's address holds it.
const find = (id) => document.getElementById(id);
const token = takeToken();
const state = { query: "", judged: "", document: "", text: null, other: "", align: "", normalise: "", salience: true, k: 10, without: new Set(), walk: [] };
const asking = {}; // what is being asked -> its AbortController: a newer question replaces an older one
let known; // the answer of /systems
let judged = []; // the judged queries
let walked = []; // judged queries, those first where two systems differ most
let answers = new Map(); // system -> {run, milliseconds} or {error} of the query
const beginnings = new Map(); // document -> [title, beginning]
let original = ""; // the text of the document that is open, as the corpus has it
const explained = { document: new Map(), other: new Map() }; // system -> {cards, error}
const cards = alignmentCards(find("systems"), remember);

// Answers that come close together are drawn together: each drawing lays out the page.
const gathered = (call, milliseconds = 50) => {
  let timer = 0;
  return () => {
    timer ||= setTimeout(() => {
      timer = 0;
      call();
    }, milliseconds);
  };
};
const [drawRankingSoon, drawCardsSoon] = [gathered(drawRanking), gathered(drawCards)];
const shown = () => known.systems.filter(({ name }) => !state.without.has(name));
// The systems that a fusion is made of, if all of them are shown: their cards are not drawn twice.
const fused = ({ parts }) => (parts.every((name) => shown().some((one) => one.name === name)) ? parts : []);
const relevant = () => new Set(judged.find(({ id }) => id === state.judged)?.relevant ?? []);

// The token comes in the address once and stays in this tab.
function takeToken() {
  const match = location.hash.match(/^#token=([^&]*)/);
  if (match) {
    sessionStorage.setItem("token", decodeURIComponent(match[1]));
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token") ?? "";
}

// The answer of a path, or null where a newer question of the same name has replaced this one.
async function ask(path, body, name = path) {
  asking[name]?.abort();
  const controller = (asking[name] = new AbortController());
  const headers = { ...(body && { "Content-Type": "application/json" }), ...(token && { Authorization: `Bearer ${token}` }) };
  try {
    const answer = await fetch(path, { method: body ? "POST" : "GET", body: body && JSON.stringify(body), headers, signal: controller.signal });
    const value = await answer.json();
    if (controller.signal.aborted) return null;
    if (!answer.ok) throw new Error(value.error);
    if (find("k").validity.valid) find("message").textContent = "";
    return value;
  } catch (error) {
    if (error.name !== "AbortError") find("message").textContent = error instanceof TypeError ? "The service does not answer." : error.message;
    return null;
  }
}

const drop = (name) => asking[name]?.abort();

// --- the formula ----------------------------------------------------------------------------------------

function view() {
  return {
    ...(state.align && { align: state.align }),
    ...(state.normalise && { normalise: state.normalise }),
    ...(!state.salience && { salience: false }),
  };
}

// "TopK(k=2)" of the chosen A and its knobs.
function readAlign() {
  const name = find("align").value;
  const values = [...find("knobs").querySelectorAll("input")].map((box) => {
    if (box.type === "checkbox") return `${box.name}=${box.checked ? "True" : "False"}`;
    if (box.validity.badInput) return `${box.name}="?"`; // the service answers what it must be
    return box.value === "" ? "" : `${box.name}=${+box.value}`;
  });
  return name && `${name}(${values.filter(Boolean).join(", ")})`;
}

const STARTS = { k: 2, p: 0.1, eps: 0.05, planes: 4, repetitions: 10 }; // of knobs without a default

function listKnobs(values = {}) {
  const knobs = Object.entries(known.alignments[find("align").value] ?? {});
  find("knobs").replaceChildren(...knobs.map(([name, { type, minimum, maximum, default: preset }]) => {
    const box = element("input");
    box.name = name;
    const types = [type].flat();
    if (types.includes("boolean")) {
      box.type = "checkbox";
      box.checked = (values[name] ?? (preset ? "True" : "False")) === "True";
    } else {
      box.type = "number";
      box.step = types.includes("number") ? "any" : 1;
      box.min = minimum ?? "";
      box.max = maximum ?? "";
      box.value = values[name] ?? preset ?? STARTS[name] ?? "";
      box.placeholder = preset ?? "";
    }
    box.addEventListener("input", changeFormula);
    const label = element("label", "", name === "eps" ? "ε " : `${name} `);
    label.append(box);
    return label;
  }));
}

function changeFormula() {
  state.align = readAlign();
  state.normalise = find("normalise").value;
  state.salience = find("salience").checked;
  search();
  open();
}

function showFormula() {
  const [, name, values] = state.align.match(/^(\w+)\((.*)\)$/) ?? [null, "", ""];
  find("align").value = name;
  listKnobs(Object.fromEntries(values.split(", ").filter(Boolean).map((pair) => pair.split("="))));
  find("normalise").value = state.normalise;
  find("salience").checked = state.salience;
}

// --- rankings -------------------------------------------------------------------------------------------

async function search() {
  remember();
  const names = shown().map(({ name }) => name);
  for (const { name } of known.systems) drop(`search ${name}`);
  answers = new Map([...answers].filter(([name]) => names.includes(name)));
  if (!state.query.trim()) {
    answers = new Map();
    return drawRanking();
  }
  const queries = { q: state.query };
  await Promise.all(names.map(async (name) => {
    const answer = await ask("/search", { queries, systems: [name], k: state.k, characters: 200, ...view() }, `search ${name}`);
    if (!answer) return;
    answers.set(name, answer.systems[name]);
    for (const [id, beginning] of Object.entries(answer.documents)) beginnings.set(id, beginning);
    drawRankingSoon();
  }));
}

function drawRanking() {
  const marks = relevant();
  const focused = document.activeElement?.closest?.(".entry");
  const place = focused && [focused.dataset.system, focused.dataset.id];
  find("columns").replaceChildren(...shown().map(({ name }) => {
    const column = element("div", "column");
    const answer = answers.get(name);
    column.append(element("h3", "", name));
    const rows = answer?.run?.q ?? [];
    const facts = !answer ? "" : answer.error ?? `${rows.length ? "" : "nothing found · "}${number(answer.milliseconds)} ms`;
    column.append(element("p", "quiet", facts));
    const list = element("ol");
    rows.forEach(([id, score], rank) => {
      const [title, text] = beginnings.get(id) ?? ["", ""];
      const entry = element("button", "entry");
      entry.type = "button";
      entry.dataset.id = id;
      entry.dataset.system = name;
      entry.setAttribute("aria-pressed", id === state.document);
      const heading = element("span", "name");
      const label = `${rank + 1}. ${marks.has(id) ? "★ " : ""}${id}${title && !id.startsWith(title) ? ` ${title}` : ""}`;
      heading.append(element("b", "", label), element("span", "", number(score)));
      entry.append(heading, element("span", "snippet", text.startsWith(title) ? text.slice(title.length).trim() || text : text));
      entry.title = `${label}${marks.has(id) ? " (judged relevant)" : ""}`;
      entry.classList.toggle("relevant", marks.has(id));
      const item = element("li");
      item.append(entry);
      list.append(item);
    });
    column.append(list);
    return column;
  }));
  if (place) [...document.querySelectorAll(".entry")].find(({ dataset }) => dataset.system === place[0] && dataset.id === place[1])?.focus();
  listOthers();
  join();
}

// Lines between the same documents of neighbouring columns.
function join(marked = state.document) {
  const frame = find("columns").getBoundingClientRect();
  const columns = [...document.querySelectorAll(".column")].map((column) => new Map([...column.querySelectorAll(".entry")].map((entry) => [entry.dataset.id, entry])));
  const paths = columns.slice(1).flatMap((column, n) => [...column].flatMap(([id, entry]) => {
    const before = columns[n].get(id);
    if (!before) return [];
    const [from, to] = [before.getBoundingClientRect(), entry.getBoundingClientRect()];
    const [x1, y1, x2, y2] = [from.right - frame.x, from.y + from.height / 2 - frame.y, to.x - frame.x, to.y + to.height / 2 - frame.y];
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    const middle = (x1 + x2) / 2;
    path.setAttribute("d", `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`);
    if (id === marked) path.classList.add("marked");
    return [path];
  }));
  find("joins").replaceChildren(...paths);
  for (const entry of document.querySelectorAll(".entry")) entry.classList.toggle("marked", entry.dataset.id === marked);
}

// --- the document that is open --------------------------------------------------------------------------

async function open() {
  remember();
  find("opened").hidden = !state.document;
  for (const { name } of known.systems) for (const which of ["document", "other"]) drop(`explain ${which} ${name}`);
  if (!state.document || !state.query.trim()) return drawCards();
  if (state.text !== null && !state.text.trim()) {
    explained.document = new Map();
    find("message").textContent = "The document is empty, so nothing can be aligned: write a text, or undo the changes.";
    return drawCards();
  }
  await Promise.all([explain("document", state.document, state.text), explain("other", state.other, null)]);
}

// Ask each system by itself: a card is drawn when its system has answered.
async function explain(which, id, text) {
  const names = shown().map(({ name }) => name);
  const cards = (explained[which] = new Map([...explained[which]].filter(([name]) => id && names.includes(name))));
  if (!id) return drawCards();
  await Promise.all(names.map(async (name) => {
    const answer = await ask("/explain", { query: state.query, document: id, ...(text !== null && { text }), systems: [name], ...view() }, `explain ${which} ${name}`);
    if (!answer) return;
    const { cards: parts = [], rank, error } = answer.systems[name];
    cards.set(name, { error, cards: parts.map((card) => ({ ...card, rank: rank ? `rank ${rank}` : "" })) });
    drawCardsSoon();
  }));
}

function drawCards() {
  cards.draw(shown().flatMap((system) => (fused(system).length ? [] : explained.document.get(system.name)?.cards ?? [])), true);
  for (const system of shown()) {
    const { error, cards: parts } = explained.document.get(system.name) ?? {};
    const names = parts?.length ? fused(system) : [];
    if (!error && !names.length && parts?.length !== 0) continue;
    const card = element("article", "card");
    const reason = names.length ? `A fusion of ${names.join(" and ")}, whose cards are here.` : "A is not defined here: the system reads both texts at once.";
    card.append(element("h3", "", system.name), element("p", "quiet", error ?? reason));
    if (names.length) card.append(element("p", "rank", parts[0].rank));
    find("systems").append(card);
  }
  drawWhy();
  find("undo").disabled = state.text === null;
}

const ROWS = 12; // query tokens of a comparison, those with the largest differences

// Σ_i S A / Z of each query token, for both documents: why one is above the other.
function drawWhy() {
  const shares = (card) => {
    const values = card.query.map(() => 0);
    card.j.forEach((j, l) => (values[j] += (card.s[l] * card.a[l]) / card.Z));
    return values;
  };
  const cardsOf = (which, name) => (state.other && explained[which].get(name)?.cards) || [];
  const pairs = shown().filter((system) => !fused(system).length).flatMap(({ name }) => cardsOf("document", name).map((mine, n) => [mine, cardsOf("other", name)[n]]));
  const tables = pairs.filter(([, theirs]) => theirs).map(([mine, theirs]) => {
    const card = element("article", "card why");
    const [left, right] = [shares(mine), shares(theirs)];
    const above = mine.rel >= theirs.rel ? [state.document, state.other] : [state.other, state.document];
    card.append(element("h3", "", mine.system), element("p", "quiet", `${above[0]} is above ${above[1]} by ${number(Math.abs(mine.rel - theirs.rel))}`));
    const table = element("table");
    const row = (parts, kind = "td") => {
      const made = element("tr");
      made.append(...parts.map((part) => element(kind, "", part)));
      return made;
    };
    const head = element("thead");
    head.append(row(["query token", "this", "other", "difference"], "th"));
    const body = element("tbody");
    const words = spelled(mine.query);
    const rows = words.map(({ text }, j) => [text, left[j], right[j], left[j] - right[j]]);
    if (mine.rest || theirs.rest) rows.push(["rest", mine.rest, theirs.rest, mine.rest - theirs.rest]);
    rows.sort((a, b) => Math.abs(b[3]) - Math.abs(a[3]));
    const rest = rows.splice(ROWS).reduce((total, one) => total.map((value, n) => value + one[n + 1]), [0, 0, 0]);
    rows.push(["others", ...rest]);
    for (const [text, one, two, difference] of rows.filter(([, one, two]) => one || two)) {
      const line = row([text, number(one), number(two), number(difference)]);
      line.lastChild.className = difference < 0 ? "less" : "more";
      body.append(line);
    }
    const foot = element("tfoot");
    foot.append(row(["rel", number(mine.rel), number(theirs.rel), number(mine.rel - theirs.rel)]));
    table.append(head, body, foot);
    card.append(table);
    return card;
  });
  find("why").replaceChildren(...tables);
}

function listOthers() {
  const ids = new Set([...answers.values()].flatMap((answer) => (answer.run?.q ?? []).map(([id]) => id)));
  ids.delete(state.document);
  if (state.other) ids.add(state.other);
  const select = find("other");
  select.replaceChildren(option("", "no other document"), ...[...ids].map((id) => option(id, short(id, 60))));
  select.value = state.other;
}

async function choose(id, text = null) {
  const answer = await ask(`/documents/${encodeURIComponent(id)}`, undefined, "document");
  if (!answer) return;
  if (state.other === id) state.other = "";
  state.document = id;
  original = answer.text;
  state.text = text;
  find("text").value = text ?? original;
  find("title").textContent = answer.title && answer.title !== id ? `${id} ${answer.title}` : id;
  for (const entry of document.querySelectorAll(".entry")) entry.setAttribute("aria-pressed", entry.dataset.id === id);
  listOthers();
  join();
  await open();
}

// --- the state and the address --------------------------------------------------------------------------

function remember() {
  const parts = new URLSearchParams();
  for (const name of ["query", "judged", "document", "other", "align", "normalise"]) if (state[name]) parts.set(name, state[name]);
  if (state.text !== null) parts.set("text", state.text);
  if (!state.salience) parts.set("salience", "off");
  if (state.k !== 10) parts.set("k", state.k);
  for (const name of state.without) parts.append("without", name);
  if (state.walk.length) state.walk.forEach((name) => parts.append("walk", name));
  const held = cards.held();
  if (held) parts.set("hold", `${held.side} ${held.key}`);
  const address = parts.size ? `#${parts}` : location.pathname;
  find("link").href = address;
  history.replaceState(null, "", address);
}

// Take the state from the address. This alone sets what can be typed before the service has answered.
function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  for (const name of ["query", "judged", "document", "other", "align", "normalise"]) state[name] = parts.get(name) ?? "";
  state.text = parts.get("text");
  state.salience = parts.get("salience") !== "off";
  state.k = Math.min(100, Math.max(1, Math.trunc(+(parts.get("k") ?? 10)) || 10));
  find("query").value = state.query;
  find("k").value = state.k;
  return parts;
}

async function restore(parts) {
  const names = known.systems.map(({ name }) => name);
  if (state.query !== find("query").value) readQuery();
  state.without = new Set(parts.getAll("without").filter((name) => names.includes(name)));
  const pair = parts.getAll("walk").filter((name) => names.includes(name));
  state.walk = pair.length === 2 ? pair : [];
  find("judged-query").value = state.judged;
  for (const box of find("shown").querySelectorAll("input")) box.checked = !state.without.has(box.value);
  showFormula();
  if (state.walk.length) {
    [find("first").value, find("second").value] = state.walk;
    walk(false);
  }
  const [side, ...key] = (parts.get("hold") ?? "").split(" ");
  const searched = search();
  if (state.document) await choose(state.document, state.text);
  else open();
  await searched;
  drawCards(); // what was answered last may still be waiting to be drawn
  requestAnimationFrame(() => cards.holdKey(side, key.join(" ")));
}

// --- judged queries -------------------------------------------------------------------------------------

function chooseJudged(id) {
  const query = judged.find((one) => one.id === id);
  state.judged = query ? id : "";
  find("judged-query").value = state.judged;
  if (!query) return search();
  state.query = find("query").value = query.text;
  closeDocument();
  drawStep();
  return search();
}

async function walk(begin = true) {
  const typed = find("query").value;
  state.walk = [find("first").value, find("second").value];
  find("difference").value = "searching all judged queries …";
  const answer = await ask("/differences", { systems: state.walk });
  walked = answer?.queries ?? [];
  find("difference").value = "";
  drawStep();
  if (begin && walked.length && find("query").value === typed) step(0);
}

function step(by) {
  const at = walked.findIndex(({ id }) => id === state.judged);
  const next = walked[by && at >= 0 ? at + by : 0];
  if (next) chooseJudged(next.id);
}

function drawStep() {
  const at = walked.findIndex(({ id }) => id === state.judged);
  find("previous").disabled = at <= 0;
  find("next").disabled = !walked.length || at === walked.length - 1;
  if (at < 0) return;
  const values = Object.entries(walked[at].values).map(([name, value]) => `${name} ${value.toFixed(3)}`);
  find("difference").value = `${at + 1} of ${walked.length}, nDCG@10: ${values.join(", ")}`;
}

// --- saving ---------------------------------------------------------------------------------------------

function download(name, type, text) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function saveHtml() {
  const systems = shown().map(({ name }) => name);
  const answer = await ask("/save", { query: state.query, document: state.document, ...(state.text !== null && { text: state.text }), systems, ...view() });
  if (answer) download("alignment.html", "text/html", answer.html);
}

// The rankings and cards as they stand, as an image: boxes, lines and texts at their places on the page.
function saveSvg() {
  const parts = ["#ranking", "#why", "#systems"].map((name) => document.querySelector(name)).filter((part) => part.offsetHeight);
  const top = Math.min(...parts.map((part) => part.getBoundingClientRect().top));
  const width = document.documentElement.clientWidth;
  const height = Math.max(...parts.map((part) => part.getBoundingClientRect().bottom)) - top;
  const namespace = "http://www.w3.org/2000/svg";
  const make = (name, values) => {
    const made = document.createElementNS(namespace, name);
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
    return made;
  };
  const image = make("svg", { xmlns: namespace, width, height, viewBox: `0 0 ${width} ${height}` });
  image.append(make("rect", { width, height, fill: getComputedStyle(document.body).backgroundColor }));
  const place = (node, into) => {
    const style = getComputedStyle(node);
    const box = node.getBoundingClientRect();
    if (style.backgroundColor !== "rgba(0, 0, 0, 0)" || parseFloat(style.borderTopWidth)) {
      for (const { x, y, width, height } of node.getClientRects()) {
        const look = { fill: style.backgroundColor, stroke: parseFloat(style.borderTopWidth) ? style.borderTopColor : "none", rx: parseFloat(style.borderRadius) || 0 };
        into.append(make("rect", { x, y: y - top, width, height, ...look }));
      }
    }
    const area = { x: box.x, y: box.y - top, width: box.width, height: box.height };
    if (node instanceof HTMLCanvasElement) into.append(make("image", { ...area, href: node.toDataURL(), preserveAspectRatio: "none", "image-rendering": "pixelated" }));
    if (node instanceof SVGPathElement) {
      const { x, y } = node.ownerSVGElement.getBoundingClientRect();
      into.append(make("path", { d: node.getAttribute("d"), transform: `translate(${x} ${y - top})`, fill: "none", stroke: style.stroke, "stroke-width": style.strokeWidth, opacity: style.opacity }));
    }
    if (style.overflowX !== "visible" && node instanceof HTMLElement && box.width && box.height) {
      const clipped = make("svg", { ...area, viewBox: `${area.x} ${area.y} ${area.width} ${area.height}` });
      into.append(clipped);
      into = clipped;
    }
    for (const child of node.childNodes) {
      if (child instanceof Element) place(child, into);
      else if (child instanceof Text && child.data.trim()) words(child, style, into);
    }
  };
  // A text for each line that the browser has made of a node.
  const words = (node, style, into) => {
    const range = document.createRange();
    const lines = [];
    let start = 0;
    for (const character of node.data) {
      range.setStart(node, start);
      range.setEnd(node, (start += character.length));
      const box = range.getClientRects()[0];
      if (!box) continue;
      const y = box.top + box.height * 0.78 - top;
      if (Math.abs(y - (lines.at(-1)?.y ?? -1e9)) > 2) lines.push({ x: box.x, y, text: "" });
      lines.at(-1).text += /\s/.test(character) ? " " : character;
    }
    for (const { x, y, text } of lines) {
      const look = { fill: style.color, "font-size": style.fontSize, "font-weight": style.fontWeight, "font-family": style.fontFamily };
      const made = make("text", { x, y, ...look });
      made.textContent = text;
      into.append(made);
    }
  };
  for (const part of parts) place(part, image);
  download("alignment.svg", "image/svg+xml", new XMLSerializer().serializeToString(image));
}

// --- the controls ---------------------------------------------------------------------------------------

function soon(call, milliseconds) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(call, milliseconds);
  };
}

function readQuery() {
  state.query = find("query").value;
  state.judged = find("judged-query").value = judged.find(({ text }) => text === state.query)?.id ?? "";
}

function takeQuery() {
  if (!known || state.query === find("query").value) return;
  readQuery();
  drawStep();
  search();
  open();
}

function closeDocument() {
  state.document = state.other = "";
  state.text = null;
  explained.document = explained.other = new Map();
  for (const entry of document.querySelectorAll(".entry")) entry.setAttribute("aria-pressed", false);
  open();
  join();
}

function connect() {
  const takeQuerySoon = soon(takeQuery, 120);
  find("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    takeQuery();
  });
  find("query").addEventListener("input", takeQuerySoon);
  find("align").addEventListener("change", () => {
    listKnobs();
    changeFormula();
  });
  for (const name of ["normalise", "salience"]) find(name).addEventListener("change", changeFormula);
  find("plain").addEventListener("click", () => {
    Object.assign(state, { align: "", normalise: "", salience: true });
    showFormula();
    changeFormula();
  });
  find("k").addEventListener("input", ({ target }) => {
    if (!target.validity.valid) {
      find("message").textContent = `documents must be a whole number from ${target.min} to ${target.max}; there are ${state.k}`;
      return;
    }
    state.k = +target.value;
    search();
  });
  find("k").addEventListener("change", ({ target }) => {
    if (target.validity.valid) return;
    target.value = state.k;
    find("message").textContent = "";
  });
  find("columns").addEventListener("click", (event) => {
    const entry = event.target.closest(".entry");
    if (entry) choose(entry.dataset.id);
  });
  for (const kind of ["pointerover", "focusin"]) find("columns").addEventListener(kind, (event) => join(event.target.closest(".entry")?.dataset.id ?? state.document));
  find("columns").addEventListener("pointerleave", () => join());
  find("other").addEventListener("change", () => {
    state.other = find("other").value;
    explained.other = new Map();
    open();
  });
  const editSoon = soon(open, 60);
  find("text").addEventListener("input", () => {
    const text = find("text").value;
    state.text = text === original ? null : text;
    editSoon();
  });
  find("undo").addEventListener("click", () => {
    find("text").value = original;
    state.text = null;
    open();
  });
  find("close").addEventListener("click", closeDocument);
  find("save-svg").addEventListener("click", saveSvg);
  find("save-html").addEventListener("click", saveHtml);
  find("judged-query").addEventListener("change", () => chooseJudged(find("judged-query").value));
  find("walk").addEventListener("click", () => walk());
  find("previous").addEventListener("click", () => step(-1));
  find("next").addEventListener("click", () => step(1));
  addEventListener("hashchange", () => known && restore(readAddress()));
  new ResizeObserver(() => join()).observe(find("columns"));
}

async function begin() {
  const parts = readAddress();
  connect();
  known = await ask("/systems");
  if (!known) return;
  if (known.queries) judged = (await ask("/queries"))?.queries ?? [];
  find("judged").hidden = !judged.length;
  find("judged-query").replaceChildren(option("", "–"), ...judged.map(({ id, text }) => option(id, short(text))));
  for (const which of ["first", "second"]) find(which).replaceChildren(...known.systems.map(({ name }) => option(name)));
  find("second").selectedIndex = Math.min(1, known.systems.length - 1);
  const alignments = Object.keys(known.alignments).filter((name) => known.systems.some((system) => system.alignments.includes(name)));
  find("align").replaceChildren(option("", "as each system has it"), ...alignments.map((name) => option(name)));
  find("normalise").replaceChildren(option("", "as each system has it"), ...known.normalisers.map((name) => option(name)));
  find("formula").disabled = !alignments.length;
  for (const { name } of known.systems) {
    find("shown").append(checkbox(name, (checked) => {
      state.without[checked ? "delete" : "add"](name);
      search();
      open();
    }));
  }
  await restore(parts);
}

begin();
