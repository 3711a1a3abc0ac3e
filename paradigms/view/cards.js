"use strict";

// Shared by all pages.
const element = (name, className, text) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};
const option = (value, text = value) => {
  const made = element("option", "", text);
  made.value = value;
  return made;
};
// A labelled checkbox, which is checked. changed: called with whether it is.
const checkbox = (name, changed) => {
  const box = element("input");
  Object.assign(box, { type: "checkbox", checked: true, value: name });
  box.addEventListener("change", () => changed(box.checked));
  const label = element("label");
  label.append(box, ` ${name}`);
  return label;
};
const number = (value) => (value === null ? "–" : String(+value.toPrecision(4)));
const short = (text, most = 90) => (text.length > most ? [...text].slice(0, most - 1).join("") + "…" : text);

// alignmentCards(grid, changed) draws a card for each system into an element: rel and Z, the matrix S·A, tokens
// in shades of their share, and the links between them. A link l joins document token i[l] to query token j[l]
// with similarity s[l] and weight a[l]; its contribution to Z rel is s[l] a[l]. Pointer and keyboard show what
// one token is aligned to, in every card; `changed` is called when a token is held or let go.
function alignmentCards(grid, changed = () => {}) {
  const LINKS_DRAWN = 250; // at rest only the strongest are drawn: more would hide the text
  let cards = [];
  let pointed = null; // the token whose links are shown: {side, key}
  let held = null; // the token that a click or Enter holds

  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const same = (a, b) => a?.side === b?.side && a?.key === b?.key;
  const largest = (values) => values.reduce((most, value) => Math.max(most, value), 0);

  // The same token in another system is the one with the same text and the same number of earlier equals.
  function keys(words) {
    const seen = new Map();
    return words.map(({ text }) => {
      const count = seen.get(text) || 0;
      seen.set(text, count + 1);
      return `${text} ${count}`;
    });
  }

  function makeCard(data) {
    const card = element("article", "card");
    const header = element("header");
    const facts = element("p", "facts");
    const canvas = element("canvas");
    canvas.setAttribute("role", "img");
    const linked = element("p", "linked");
    linked.setAttribute("aria-live", "polite");
    const drawing = element("div", "drawing");
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("aria-hidden", "true");
    drawing.append(svg);
    header.append(element("h3", "", data.system), facts);
    const reads = element("p", "reads");
    card.append(header, reads);
    card.append(canvas, linked, drawing);
    const sides = {};
    for (const side of ["query", "document"]) {
      const box = element("div", `tokens ${side}`);
      box.setAttribute("role", "listbox");
      box.setAttribute("aria-orientation", "horizontal");
      box.dir = "auto";
      drawing.append(box);
      const words = spelled(data[side]);
      const picture = side === "document" ? data.picture : null;
      const patches = new Set(picture?.tokens);
      const cells = picture && cellsOver(picture, box);
      const salience = data[`${side}_salience`];
      const most = Math.max(1, largest(salience || []));
      const tokens = words.map(({ text, joined }, x) => {
        const token = element("span", joined ? "token joined" : "token", text);
        token.setAttribute("role", "option");
        token.tabIndex = x ? -1 : 0;
        token.dataset.side = side;
        token.dataset.x = x;
        if (salience) {
          token.style.setProperty("--salience", Math.max(0, salience[x] / most));
          token.title = `salience ${number(salience[x])}`;
        }
        if (patches.has(x)) {
          token.title = `patch ${text}${salience ? `, ${token.title}` : ""}`;
          token.setAttribute("aria-label", token.title);
          cells.append(token);
          return token;
        }
        if (x && !joined) box.append(" ");
        box.append(token);
        return token;
      });
      if (!tokens.length) box.append(element("span", "empty", "(no tokens)"));
      box.setAttribute("aria-label", `${side} tokens, ${data.system}`);
      sides[side] = { tokens, words, keys: keys(words) };
    }
    return fill({ card, facts, reads, sides, canvas, svg, linked }, data);
  }

  // Put A, Z and rel of `data` into a card of the same tokens.
  function fill(made, data) {
    const links = `${data.a.length} link${data.a.length === 1 ? "" : "s"}`;
    made.facts.replaceChildren("rel ", element("b", "", number(data.rel)), ` · Z ${number(data.Z)}${data.rest ? ` · rest ${number(data.rest)}` : ""} · ${links}`);
    if (data.rank) made.facts.append(" · ", element("b", "rank", data.rank));
    made.reads.textContent = data.reads ? `A may read: ${data.reads}` : "";
    made.reads.hidden = !data.reads;
    made.sides.query.of = data.j;
    made.sides.document.of = data.i;
    return Object.assign(made, { data, share: data.s.map((s, l) => s * data.a[l]) });
  }

  const TOKENS = ["system", "query", "document", "query_salience", "document_salience", "picture"];
  const sameTokens = (one, other) => TOKENS.every((name) => JSON.stringify(one[name]) === JSON.stringify(other[name]));

  // A picture, and over it the grid to which its patches are added row by row.
  function cellsOver({ source, width, height, columns, rows }, box) {
    const frame = element("div", "picture");
    const image = element("img");
    Object.assign(image, { src: source, alt: "" });
    image.style.aspectRatio = `${width} / ${height}`; // known before the picture is drawn: links end where they should
    const cells = element("div", "patches");
    cells.style.gridTemplate = `repeat(${rows}, 1fr) / repeat(${columns}, 1fr)`;
    frame.append(image, cells);
    box.append(frame);
    return cells;
  }

  // The matrix, one pixel an entry: query tokens down, document tokens across.
  function drawMatrix({ data, share, canvas }) {
    canvas.width = Math.max(1, data.document.length);
    canvas.height = Math.max(1, data.query.length);
    canvas.style.height = `${Math.min(150, Math.max(14, 5 * canvas.height))}px`;
    canvas.setAttribute("aria-label", `S·A of ${data.system}: ${data.query.length} query by ${data.document.length} document tokens`);
    const context = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const color = (name) => `rgb(${style.getPropertyValue(name).trim().split(/\s+/).join(",")})`;
    const [positive, negative] = [color("--accent"), color("--negative")];
    const most = largest(share.map(Math.abs)) || 1;
    share.forEach((value, l) => {
      context.globalAlpha = Math.sqrt(Math.abs(value) / most); // the root keeps weak links visible
      context.fillStyle = value < 0 ? negative : positive;
      context.fillRect(data.i[l], data.j[l], 1, 1);
    });
  }

  // Shades of a card and what they say: at rest of all links, else of the links of token x on `side`.
  function shade(made, side, x) {
    const { data, sides, share, linked } = made;
    const active = x >= 0;
    let links = share.map((_, l) => l);
    if (active) links = links.filter((l) => sides[side].of[l] === x);
    links.sort((a, b) => Math.abs(share[b]) - Math.abs(share[a]));
    const total = sum(links.map((l) => Math.abs(share[l]))) || 1;
    for (const name of ["query", "document"]) {
      const weights = new Float64Array(sides[name].tokens.length);
      for (const l of links) weights[sides[name].of[l]] += share[l];
      const most = active ? total : largest([...weights].map(Math.abs)) || 1;
      sides[name].tokens.forEach((token, y) => {
        const self = active && name === side && y === x;
        const weight = String(self ? 0 : Math.min(1, Math.abs(weights[y]) / most));
        if (token.style.getPropertyValue("--weight") !== weight) token.style.setProperty("--weight", weight);
        token.classList.toggle("negative", weights[y] < 0);
        token.classList.toggle("active", self);
        if (token.getAttribute("aria-selected") !== String(self)) token.setAttribute("aria-selected", self);
      });
    }
    const token = (name, y) => element("b", "", sides[name].words[y].text);
    linked.replaceChildren(links.length ? "" : active ? "nothing is aligned to " : "nothing is aligned");
    if (active) linked.append(token(side, x), links.length ? " ↔ " : "");
    links.slice(0, active ? 12 : 5).forEach((l, n) => {
      linked.append(n ? " · " : "");
      if (!active) linked.append(token("query", data.j[l]), " ↔ ", token("document", data.i[l]));
      else linked.append(side === "query" ? token("document", data.i[l]) : token("query", data.j[l]));
      linked.append(` ${Math.round((100 * Math.abs(share[l])) / total)}%`);
      if (active) linked.append(` (S ${number(data.s[l])}, A ${number(data.a[l])})`);
    });
    return { made, links: links.slice(0, LINKS_DRAWN), active };
  }

  // The paths of a card's links, measured before any card draws its own: the page is laid out once.
  function measure({ made: { data, sides, share, svg }, links, active }) {
    const origin = svg.getBoundingClientRect();
    const most = links.length ? Math.abs(share[links[0]]) || 1 : 1;
    const boxes = new Map();
    const box = (token) => boxes.get(token) || boxes.set(token, token.getClientRects()[0]).get(token);
    const paths = links.flatMap((l) => {
      const from = box(sides.query.tokens[data.j[l]]);
      const to = box(sides.document.tokens[data.i[l]]);
      if (!from || !to) return [];
      const [x1, y1] = [from.x + from.width / 2 - origin.x, from.bottom - origin.y];
      const [x2, y2] = [to.x + to.width / 2 - origin.x, to.top - origin.y];
      const bend = (y2 - y1) * 0.5;
      const opacity = (active ? 0.3 : 0.05) + (active ? 0.6 : 0.22) * (Math.abs(share[l]) / most);
      return [{ d: `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`, opacity, negative: share[l] < 0 }];
    });
    return { svg, paths };
  }

  function drawLines({ svg, paths }) {
    svg.replaceChildren(...paths.map(({ d, opacity, negative }) => {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", d);
      path.style.opacity = opacity;
      if (negative) path.classList.add("negative");
      return path;
    }));
  }

  // The same token in every card, or all at rest. some: the cards to draw.
  function point(target, some = cards) {
    pointed = target;
    const shaded = some.map((made) => shade(made, target?.side ?? "query", target ? made.sides[target.side].keys.indexOf(target.key) : -1));
    shaded.map(measure).forEach(drawLines);
  }

  function targetOf(event) {
    const token = event.target.closest(".token");
    const made = cards.find(({ card }) => card.contains(event.target));
    if (!made) return null;
    if (token) return { side: token.dataset.side, key: made.sides[token.dataset.side].keys[token.dataset.x], token, made };
    if (event.target === made.canvas && made.data.query.length) {
      const j = Math.floor((event.offsetY / made.canvas.clientHeight) * made.data.query.length);
      return { side: "query", key: made.sides.query.keys[Math.min(Math.max(j, 0), made.data.query.length - 1)] };
    }
    return null;
  }

  function hold(target) {
    held = held && target && same(held, target) ? null : target && { side: target.side, key: target.key };
    point(held || target);
    changed();
  }

  function follow(event) {
    if (held || event.pointerType !== "mouse") return;
    const target = targetOf(event);
    if (!same(target, pointed)) point(target);
  }

  // One stop of the Tab key per list of tokens; arrows move inside it.
  function move(event) {
    const target = targetOf(event);
    if (event.key === "Escape") return hold(null);
    if (!target || !target.token) return undefined;
    const { tokens } = target.made.sides[target.side];
    const x = tokens.indexOf(target.token);
    const next = { ArrowRight: x + 1, ArrowDown: x + 1, ArrowLeft: x - 1, ArrowUp: x - 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") hold(target);
    else if (next === undefined) return undefined;
    else if (tokens[next]) {
      target.token.tabIndex = -1;
      tokens[next].tabIndex = 0;
      tokens[next].focus();
    }
    return event.preventDefault();
  }

  // Cards for these systems, in place of those before. A card is kept if its tokens are the same, and is not
  // drawn again if its data is. keep: hold the token that is held, where it is there.
  function draw(systems, keep = false) {
    const before = new Set(cards.map(({ data }) => data));
    const kept = new Map(cards.map((made) => [made.data.system, made]));
    cards = systems.map((data) => {
      const made = kept.get(data.system);
      if (made?.data === data) return made;
      return made && sameTokens(made.data, data) ? fill(made, data) : makeCard(data);
    });
    for (const child of [...grid.children]) if (!cards.some(({ card }) => card === child)) child.remove();
    cards.forEach(({ card }, n) => grid.children[n] === card || grid.insertBefore(card, grid.children[n] ?? null));
    const fresh = cards.filter(({ data }) => !before.has(data));
    fresh.forEach(drawMatrix);
    if (!keep || !(held && cards.some(({ sides }) => sides[held.side].keys.includes(held.key)))) held = null;
    point(held, same(held, pointed) ? fresh : cards);
  }

  // Hold a token by its text and number, such as "fish 0"; false where no card has it.
  function holdKey(side, key) {
    if (!cards.some(({ sides }) => sides[side]?.keys.includes(key))) return false;
    held = null;
    hold({ side, key });
    return true;
  }

  grid.addEventListener("pointermove", follow);
  grid.addEventListener("pointerleave", () => held || point(null));
  grid.addEventListener("focusin", (event) => held || point(targetOf(event)));
  grid.addEventListener("click", (event) => hold(targetOf(event)));
  grid.addEventListener("keydown", move);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => cards.forEach(drawMatrix));
  let width;
  new ResizeObserver(() => {
    if (width !== grid.clientWidth) point(pointed); // links are drawn where the tokens are
    width = grid.clientWidth;
  }).observe(grid);
  return { draw, holdKey, held: () => held };
}

// Token as shown, and whether it continues the word before: "##ing" (WordPiece), or no "▁" or "Ġ" where the
// tokenizer marks the beginnings of words (SentencePiece, byte-level BPE). A span's name has several tokens.
function spelled(tokens) {
  const marked = tokens.some((token) => /^[▁Ġ]/.test(token));
  return tokens.map((token, x) => {
    if (/^##./.test(token)) return { text: token.slice(2), joined: x > 0 };
    if (/^[▁Ġ]./.test(token)) return { text: token.slice(1), joined: false };
    return { text: token.replaceAll(/ ##(?=\S)/g, ""), joined: marked && x > 0 && !/^[[<▁Ġ]/.test(token) && !/^[[<].*[\]>]$/.test(tokens[x - 1]) };
  });
}
