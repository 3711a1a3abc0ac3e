// Tables: a click on a column's head sorts by it; numbers first from high to low, words from a to z.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const numeric = head.classList.contains("number");
      const before = head.getAttribute("aria-sort");
      const ascending = before ? before === "descending" : !numeric;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.value;
      const order = numeric
        ? (a, b) => (value(a) === "") - (value(b) === "") || (ascending ? 1 : -1) * (value(a) - value(b))
        : (a, b) => (ascending ? 1 : -1) * value(a).localeCompare(value(b), undefined, { numeric: true });
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    });
  });
}

// Alignment: everything below is drawn from the JSON block.
const block = document.getElementById("alignments");
if (block) alignmentView(JSON.parse(block.textContent));

function alignmentView(examples) {
  const STATE = "#alignment?"; // begins the part of the address that holds the state
  const find = (id) => document.getElementById(id);
  const chooseQuery = find("choose-query");
  const chooseDocument = find("choose-document");
  const chooseSystems = find("choose-systems");
  const hidden = new Set();
  const cards = alignmentCards(find("systems"), remember);

  // The state as the page's address: what is chosen, which systems are hidden, and the token that is held.
  function remember() {
    const example = examples[chooseDocument.value];
    const state = new URLSearchParams({ query: example.query_id, document: example.document_id });
    for (const system of hidden) state.append("without", system);
    const held = cards.held();
    if (held) state.append("hold", `${held.side} ${held.key}`);
    find("state").href = `${STATE}${state}`;
    history.replaceState(null, "", find("state").href);
  }

  // The state that the page's address holds, if it holds one that is in the page.
  function restore() {
    if (!location.hash.startsWith(STATE)) return false;
    const state = new URLSearchParams(location.hash.slice(STATE.length));
    const chosen = examples.findIndex((example) => example.query_id === state.get("query") && example.document_id === state.get("document"));
    if (chosen < 0) return false;
    hidden.clear();
    for (const box of chooseSystems.querySelectorAll("input")) {
      box.checked = !state.getAll("without").includes(box.value);
      if (!box.checked) hidden.add(box.value);
    }
    chooseQuery.value = examples[chosen].query_id;
    listDocuments(chosen);
    const [side, ...key] = (state.get("hold") || "").split(" ");
    cards.holdKey(side, key.join(" "));
    find("alignment").scrollIntoView();
    return true;
  }

  function render() {
    const example = examples[chooseDocument.value];
    find("query-text").textContent = example.query;
    find("document-text").textContent = example.document || "(empty document)";
    cards.draw(example.systems.filter(({ system }) => !hidden.has(system)));
    remember();
  }

  function listDocuments(chosen) {
    const options = examples.flatMap((example, x) => {
      if (example.query_id !== chooseQuery.value) return [];
      return [option(x, `${example.relevant ? "★ relevant: " : ""}${example.document_id}: ${short(example.document, 80)}`)];
    });
    chooseDocument.replaceChildren(...options);
    if (chosen !== undefined) chooseDocument.value = chosen;
    render();
  }

  for (const [id, query] of new Map(examples.map((example) => [example.query_id, example.query]))) {
    chooseQuery.append(option(id, short(`${id}: ${query}`)));
  }
  for (const system of new Set(examples.flatMap((example) => example.systems.map((data) => data.system)))) {
    chooseSystems.append(checkbox(system, (checked) => {
      hidden[checked ? "delete" : "add"](system);
      render();
    }));
  }
  chooseQuery.addEventListener("change", () => listDocuments());
  chooseDocument.addEventListener("change", render);
  addEventListener("hashchange", restore);
  restore() || listDocuments();
}
