// Browses the records of a run. The server holds all records; the page asks for 50 at a time. Texts are never inserted as HTML.
import { alignment, element, legend, number, steps, text as coloured } from "./show.js";

const FIELDS = ["run", "recipe", "data", "watermark", "attack", "verdict"];
const find = (id) => document.getElementById(id);
let page = 0, asked = 0, state = 0;
const EVERY = 10000; // milliseconds between looks for new records

async function ask(question, parameters = {}) {
  const response = await fetch(`${question}?${new URLSearchParams(parameters)}`);
  const content = await response.json();
  if (!response.ok) throw new Error(content.error);
  return content;
}

// Shows what went wrong on the page instead of failing in silence.
async function attempt(action) {
  find("error").textContent = "";
  try {
    await action();
  } catch (error) {
    find("error").textContent = error.message;
  }
}

const filters = () => Object.fromEntries(FIELDS.map((field) => [field, find(`by-${field}`).value]));
const figure = (value, digits) => (value === null ? "" : value.toFixed(digits));

async function showTexts() {
  const turn = ++asked;
  const list = await ask("texts", { ...filters(), page });
  if (turn !== asked) return; // a later question was asked meanwhile
  page = list.page;
  state = list.state;
  find("count").textContent = `${list.total.toLocaleString("en")} texts`;
  find("place").textContent = `page ${list.page + 1} of ${list.pages.toLocaleString("en")}`;
  find("back").disabled = list.page === 0;
  find("next").disabled = list.page + 1 >= list.pages;
  find("texts").tBodies[0].replaceChildren(...list.rows.map((row) => element("tr", { "data-number": row.number, onclick: () => attempt(() => showText(row.number)) },
    element("td", {}, row.watermark), element("td", {}, row.attack), element("td", {}, row.data),
    element("td", { class: row.verdict === "found" ? "found" : "" }, row.verdict),
    element("td", { class: "number" }, row.p_value === null ? "" : number(row.p_value)),
    element("td", { class: "number" }, figure(row.score, 2)),
    element("td", { class: "number" }, row.sentences === null ? "" : String(row.sentences)),
    element("td", {}, element("button", { type: "button" },
      row.beginning ? `${row.beginning} …` : "(no text)")))));
}

function facts(entry) {
  const list = element("dl", { class: "facts" });
  const pairs = [["run", entry.run], ["watermark", entry.watermark], ["data", entry.data], ["attack", entry.attack], ["verdict", entry.verdict],
    ["p-value", entry.p_value === null ? "" : number(entry.p_value)], ["score", figure(entry.score, 2)], ["error", entry.error],
    ["settings", Object.keys(entry.settings).length ? JSON.stringify(entry.settings) : ""], ["prompt", entry.prompt]];
  for (const [name, value] of pairs) if (value) list.append(element("dt", {}, name), element("dd", {}, value));
  return list;
}

// One of the two texts; `kind` names the pieces that only this text has.
function side(pieces, kind, tag, whole) {
  const paragraph = element("p", { class: "whole" });
  if (!pieces.length) paragraph.append(whole);
  for (const [piece, words] of pieces) {
    if (piece === "same") paragraph.append(words);
    else if (piece === kind) paragraph.append(element(tag, {}, words));
  }
  return paragraph;
}

async function showText(which) {
  const entry = await ask("text", { number: which, state });
  const aligned = element("div", { id: "aligned" }, element("h3", {}, "Alignment"));
  const human = !entry.original;
  const panels = [element("div", { id: "original" }, element("h3", {}, human ? "Human text" : "Original"),
    side(entry.diff, "removed", "del", human ? entry.text : entry.original))];
  if (entry.attacked) panels.push(element("div", { id: "attacked" }, element("h3", {}, `After ${entry.attack}`),
    side(entry.diff, "added", "ins", entry.text)));
  panels.push(aligned);
  const place = find("one");
  place.hidden = false;
  place.replaceChildren(element("h2", { tabindex: -1 }, `Text ${(entry.number + 1).toLocaleString("en")}`), facts(entry),
    element("div", { class: "beside" }, ...panels));
  if (entry.others.length) place.append(element("p", { class: "options" }, "The same prompt and attack:",
    ...entry.others.map((other) => element("button", { type: "button", onclick: () => attempt(() => showText(other.number)) },
      entry.run === other.run ? other.watermark : `${other.watermark} in ${other.run}`))));
  place.firstChild.focus();
  for (const row of find("texts").tBodies[0].rows) row.setAttribute("aria-selected", row.dataset.number === String(which));
  if (!entry.aligns) {
    aligned.append(element("p", { class: "note" }, "This watermark does not align sentences with a key; the score is all there is."));
    return;
  }
  const result = element("div", {});
  const choice = element("select", { "aria-label": "Text that is aligned", onchange: () => attempt(() => showAlignment(entry, result, choice.value)) },
    element("option", { value: "attacked" }, entry.attacked ? "attacked text" : "this text"));
  if (entry.attacked) choice.append(element("option", { value: "original" }, "original"));
  aligned.append(choice, result);
  await showAlignment(entry, result, "attacked");
}

async function showAlignment(entry, place, which) {
  place.replaceChildren(element("p", { class: "note", role: "status" }, "Computing the alignment; the first one loads the embedder."));
  try {
    const evidence = await ask("alignment", { number: entry.number, which, state });
    const chances = evidence.sentence_chances;
    place.replaceChildren(legend(), coloured(evidence, chances),
      element("div", { class: "scroll" }, alignment(evidence, chances)), steps(evidence, chances));
  } catch (error) {
    place.replaceChildren(element("p", { class: "note" }, `No alignment: ${error.message}.`));
  }
}

async function showTables() {
  const title = find("title").value, other = find("beside").value;
  if (!title) return;
  for (const format of ["csv", "latex", "markdown"])
    find(format).href = `export?${new URLSearchParams({ title, format })}`;
  find("table").replaceChildren(...await Promise.all([title, other].filter(Boolean).map(drawnTable)));
}

async function drawnTable(title) {
  const table = await ask("table", { title });
  const body = element("tbody", {}, ...table.rows.map((cells) => element("tr", {}, ...cells.map(([text, small]) =>
    element("td", {}, text, ...(small ? [element("small", {}, small)] : []))))));
  return element("div", {}, element("h3", {}, title), element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...table.columns.map((name) => element("th", { scope: "col" }, name)))), body)),
  element("p", { class: "note" }, table.note));
}

// Fills a list with what can be chosen now, and keeps the choice.
function offer(select, first, values) {
  const chosen = select.value;
  select.replaceChildren(...first, ...values.map((value) => element("option", { value }, value)));
  if (values.includes(chosen)) select.value = chosen;
}

async function refresh(choices) {
  find("about").textContent = `${choices.folder}: ${choices.texts.toLocaleString("en")} scored texts. Found: a p-value of at most ${choices.fpr}.`;
  for (const field of FIELDS) {
    offer(find(`by-${field}`), [element("option", { value: "" }, "all")], choices.fields[field]);
    find(`by-${field}`).hidden = find(`by-${field}`).labels[0].hidden = field === "run" && choices.fields.run.length < 2;
  }
  await showTexts();
  const { titles } = await ask("tables");
  offer(find("title"), [], titles);
  offer(find("beside"), [element("option", { value: "" }, "none")], titles);
  await showTables();
}

// While a run goes on, its new records appear by themselves.
async function look() {
  if (document.hidden) return;
  const choices = await ask("choices");
  if (choices.state !== state) await refresh(choices);
}

async function start() {
  for (const field of FIELDS) find("filters").append(element("label", { for: `by-${field}` }, field),
    element("select", { id: `by-${field}`, onchange: () => attempt(filter) }));
  find("back").addEventListener("click", () => attempt(() => { page -= 1; return showTexts(); }));
  find("next").addEventListener("click", () => attempt(() => { page += 1; return showTexts(); }));
  for (const name of ["title", "beside"]) find(name).addEventListener("change", () => attempt(showTables));
  await refresh(await ask("choices"));
  setInterval(() => attempt(look), EVERY);
}

async function filter() {
  page = 0;
  await showTexts();
}

attempt(start);
