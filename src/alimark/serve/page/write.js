// The second tab: shows marked text while it is written, and attacks it step by step.

import { detect } from "/page/check.js";
import { element, result, shade } from "/page/show.js";
import { get, post, stream } from "/page/server.js";

const at = (id) => document.getElementById(id);
const FPR = 0.01;
let keyId = "", history = [], stopping = null;

async function busy(status, work) {
  at("write-error").textContent = "";
  at("write-status").textContent = status;
  try {
    await work();
  } catch (error) {
    if (error.name !== "AbortError") at("write-error").textContent = error.message;
  }
  at("write-status").textContent = "";
}

async function write() {
  history = [];
  for (const id of ["arriving", "moves", "attacked"]) at(id).replaceChildren();
  at("attack-form").hidden = true;
  stopping = new AbortController();
  at("stop").disabled = false;
  let text = "";
  const body = { prompt: at("prompt").value, sentences: Number(at("sentences").value) };
  try {
    await stream("/v1/completions", body, (event) => {
      const piece = event.choices[0].text, mark = event.alimark;
      text += piece;
      keyId = mark.key_id;
      if (mark.sentence) {
        const { matches, block_size: bits } = mark.sentence;
        at("arriving").append(element("li", {}, element("span", { class: shade(matches, bits) }, piece.trim()), ` ${matches} of ${bits} bits`));
      }
    }, stopping.signal);
  } finally {
    at("stop").disabled = true;
  }
  await test(text, "none (new text)");
  at("attack-form").hidden = false;
}

async function test(text, move) {
  const detection = await detect(text, { keys: [keyId], fpr: FPR, search: "whole" });
  history.push({ text, move, detection });
  draw();
}

function draw() {
  const rows = history.map(({ move, detection }, i) => element("tr", {}, element("td", {}, String(i)), element("td", {}, move),
    element("td", {}, detection.verdict), element("td", { class: "number" }, detection.p_text),
    element("td", { class: "number" }, detection.score.toFixed(2)), element("td", { class: "number" }, String(detection.sentence_count))));
  at("moves").replaceChildren(element("div", { class: "scroll" }, element("table", { "aria-label": "Result after each attack" },
    element("thead", {}, element("tr", {}, ...["", "Attack", "Verdict", "p-value", "Score", "Sentences"].map((title) => element("th", { scope: "col" }, title)))),
    element("tbody", {}, ...rows))));
  at("attacked").replaceChildren(result(history.at(-1).detection, FPR, "attacked"));
  at("undo").disabled = history.length < 2;
}

async function attack() {
  const name = at("attack").value, rate = Number(at("rate").value), chosen = at("attack").selectedOptions[0];
  const move = chosen.textContent + (chosen.dataset.rate !== undefined ? `, ${Math.round(100 * rate)}%` : "");
  const attacked = await post("/v1/attack", { name, rate, input: history.at(-1).text, seed: history.length });
  await test(attacked.text, move);
}

// Only attacks whose libraries are installed on the server are offered.
export async function offerAttacks() {
  const attacks = await get("/v1/attacks");
  at("attack").replaceChildren(...attacks.map(({ name, about, takes_rate: rate }) => element("option", { value: name, "data-rate": rate }, about)));
}

function showRate() {
  const takesRate = at("attack").selectedOptions[0]?.dataset.rate !== undefined;
  for (const node of [at("rate"), at("rate-percent"), document.querySelector("label[for=rate]")]) node.hidden = !takesRate;
}

export function start() {
  at("attack").addEventListener("change", showRate);
  at("write-form").addEventListener("submit", (event) => { event.preventDefault(); busy("Writing…", write); });
  at("stop").addEventListener("click", () => stopping?.abort());
  at("attack-form").addEventListener("submit", (event) => { event.preventDefault(); busy("Attacking…", attack); });
  at("undo").addEventListener("click", () => { history.pop(); draw(); });
  at("rate").addEventListener("input", () => { at("rate-percent").textContent = `${Math.round(100 * at("rate").value)}%`; });
}
