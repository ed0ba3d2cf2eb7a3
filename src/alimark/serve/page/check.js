// The first tab: detects the watermark in a pasted text or in files.

import { element, result } from "/page/show.js";
import { extract, post } from "/page/server.js";

const at = (id) => document.getElementById(id);
const COLUMNS = [["file", "File"], ["verdict", "Verdict"], ["p_value", "p-value"], ["score", "Score"], ["sentence_count", "Sentences"], ["key_id", "Key id"]];
let rows = [], checked = "", checking = false, order = { column: "file", down: false };

function options() {
  const key = at("key").value.trim();
  return {
    fpr: Number(at("fpr").value), search: at("excerpt").checked ? "excerpt" : "auto", evidence: true,
    ...(key ? { keys: [key] } : {}),
  };
}

export async function detect(text, more = {}) {
  const { results } = await post("/v1/detect", { ...options(), ...more, input: text });
  return results[0];
}

async function busy(work) {
  if (checking) return; // a second click while a check runs
  checking = true;
  at("check-error").textContent = "";
  at("check-status").textContent = "Detecting…";
  try {
    await work();
    at("check-status").textContent = "";
  } catch (error) {
    at("check-status").textContent = "";
    at("check-error").textContent = error.message;
  }
  checking = false;
}

function clear() {
  checked = "";
  at("table").replaceChildren();
  at("result").replaceChildren();
}

function show(detection, name) {
  at("result").replaceChildren(result(detection, options().fpr, name));
}

// Files are checked as soon as they are chosen. The button checks them again only if an option has changed since.
async function checkFiles(files) {
  const wanted = JSON.stringify([options(), files.map((file) => [file.name, file.size, file.lastModified])]);
  if (wanted === checked) return;
  clear();
  rows = [];
  for (const file of files) {
    at("check-status").textContent = `Detecting in ${file.name}…`;
    try {
      rows.push({ file: file.name, ...(await detect(await extract(file))) });
    } catch (error) {
      rows.push({ file: file.name, verdict: "error", error: error.message });
    }
  }
  if (rows.length === 1 && rows[0].error) throw new Error(rows[0].error);
  if (rows.length === 1) show(rows[0], rows[0].file);
  else draw();
  checked = wanted;
}

function draw() {
  const { column, down } = order;
  const by = (row) => row[column] ?? (down ? -Infinity : Infinity);
  rows.sort((a, b) => (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : 0) * (down ? -1 : 1));
  const head = COLUMNS.map(([id, title]) => element("th", { scope: "col", "aria-sort": id === column ? (down ? "descending" : "ascending") : "none" },
    element("button", { type: "button", onclick: () => { order = { column: id, down: id === column && !down }; draw(); } }, title)));
  const body = rows.map((row) => element("tr", {},
    element("td", {}, row.error ? row.file : element("button", { type: "button", onclick: () => show(row, row.file) }, row.file)),
    element("td", {}, row.error ? `error: ${row.error}` : row.verdict),
    element("td", { class: "number" }, row.error ? "" : row.p_text),
    element("td", { class: "number" }, row.error ? "" : row.score.toFixed(2)),
    element("td", { class: "number" }, row.error ? "" : String(row.sentence_count)), element("td", {}, row.key_id ?? "")));
  at("table").replaceChildren(element("div", { class: "scroll" }, element("table", { "aria-label": "Files" },
    element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body))));
}

export function start() {
  at("check-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const files = [...at("files").files], text = at("text").value;
    busy(async () => {
      if (files.length && !text.trim()) return checkFiles(files);
      if (!text.trim()) throw new Error("Paste a text or choose a file first.");
      clear();
      show(await detect(text), "text");
    });
  });
  at("files").addEventListener("change", () => at("files").files.length && busy(() => checkFiles([...at("files").files])));
  const drop = at("drop");
  for (const kind of ["dragenter", "dragover"])
    drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    busy(() => checkFiles([...event.dataTransfer.files]));
  });
}
