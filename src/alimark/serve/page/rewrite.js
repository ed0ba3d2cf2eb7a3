// Rewriting: marks a text that exists, says whether the mark is found, and lists the sentences whose meaning moved most.

import { element, number } from "/page/show.js";
import { post } from "/page/server.js";

const at = (id) => document.getElementById(id);

function verdict(answer) {
  if (!answer.verdict) return "The detector was busy, so the mark was not checked. Check the text in the first tab.";
  const p = `p = ${number(answer.p_value)} (${number(answer.p_value_before)} before)`;
  if (answer.verdict === "found") return `The watermark is found: ${p}.`;
  return `The watermark is not found reliably: ${answer.verdict}, ${p}. A longer text or more rewrites make it stronger.`;
}

function moved(sentences) {
  if (!sentences.length) return element("p", { class: "note" }, "No sentence was changed.");
  const rows = sentences.map((sentence) => element("tr", {}, element("td", { class: "number" }, String(sentence.number)),
    element("td", { class: "number" }, sentence.cosine.toFixed(2)), element("td", {}, sentence.before), element("td", {}, sentence.after)));
  return element("div", { class: "scroll" }, element("table", { "aria-label": "Sentences whose meaning moved most" },
    element("thead", {}, element("tr", {}, ...["No.", "Cosine", "Before", "After"].map((title) => element("th", { scope: "col" }, title)))),
    element("tbody", {}, ...rows)));
}

async function rewrite() {
  const text = at("original").value;
  if (!text.trim()) throw new Error("Paste a text first.");
  at("rewritten").replaceChildren();
  const answer = await post("/v1/rewrite", { input: text, candidates: Number(at("rewrites").value) });
  const changed = answer.outcomes.filter((outcome) => outcome === "rewritten").length;
  const copy = element("button", { type: "button", id: "copy-rewritten", onclick: async () => {
    await navigator.clipboard.writeText(answer.text);
    copy.textContent = "Copied";
  } }, "Copy the text");
  at("rewritten").replaceChildren(element("div", { class: "panel", "data-verdict": answer.verdict ?? "none" },
    element("p", { class: "verdict" }, verdict(answer)),
    element("p", { class: "note" }, `${changed} of ${answer.outcomes.length} sentences were rewritten, with key ${answer.key_id}; record ${answer.record_id}.`),
    element("h2", {}, "The marked text"), element("p", { class: "said", id: "rewritten-text" }, answer.text), copy,
    element("h2", {}, "Read these before you publish the text"), moved(answer.moved_most)));
}

export function start() {
  at("rewrite-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = at("rewrite-form").querySelector("button.main");
    at("rewrite-error").textContent = "";
    at("rewrite-status").textContent = "Rewriting… This takes some seconds for each sentence.";
    button.disabled = true;
    try {
      await rewrite();
    } catch (error) {
      at("rewrite-error").textContent = error.message;
    }
    button.disabled = false;
    at("rewrite-status").textContent = "";
  });
}
