// The chat: answers are shown sentence by sentence while they are written, and can be checked for the watermark.

import { detect } from "/page/check.js";
import { element, result } from "/page/show.js";
import { stream } from "/page/server.js";

const at = (id) => document.getElementById(id);
const FPR = 0.01;
let turns = [], stopping = null;

export function mayCheck(allowed) {
  at("chat-check").hidden = !allowed;
}

function bubble(role, text) {
  const body = element("p", { class: "said" }, text);
  at("turns").append(element("li", { class: role }, element("span", { class: "note" }, role === "user" ? "You" : "Answer"), body));
  return body;
}

function buttons() {
  const answered = turns.some((turn) => turn.role === "assistant");
  at("chat-stop").disabled = !stopping;
  at("chat-send").disabled = Boolean(stopping);
  at("chat-check").disabled = at("chat-new").disabled = Boolean(stopping) || !answered;
}

// Says whether the answer carries a mark that can be found.
function about(mark) {
  const short = mark.too_short?.[0] ? ` The answer is too short for its watermark to be found; ${mark.sentences_needed} sentences are needed.` : "";
  return mark.marked === false ? `This answer is not marked (${mark.reason}).` : `Marked with key ${mark.key_id}.${short}`;
}

async function send() {
  const question = at("message").value.trim();
  if (!question) throw new Error("Write a message first.");
  at("chat-result").replaceChildren();
  bubble("user", question);
  at("message").value = "";
  const body = bubble("assistant", "");
  stopping = new AbortController();
  buttons();
  let mark = {};
  try {
    await stream("/v1/chat/completions", { messages: [...turns, { role: "user", content: question }] }, (event) => {
      if (event.choices.length) body.append(event.choices[0].delta.content ?? "");
      mark = event.alimark;
    }, stopping.signal);
  } finally {
    stopping = null;
    // A stopped answer is part of the conversation: what was shown was written.
    if (body.textContent.trim())
      turns.push({ role: "user", content: question }, { role: "assistant", content: body.textContent });
    buttons();
  }
  body.after(element("p", { class: "note" }, about(mark)));
}

async function check() {
  const text = turns.filter((turn) => turn.role === "assistant").map((turn) => turn.content).join("\n\n");
  at("chat-result").replaceChildren(result(await detect(text, { fpr: FPR, search: "whole" }), FPR, "chat"));
}

async function busy(status, work) {
  at("chat-error").textContent = "";
  at("chat-status").textContent = status;
  try {
    await work();
  } catch (error) {
    if (error.name !== "AbortError") at("chat-error").textContent = error.message;
  }
  at("chat-status").textContent = "";
}

export function start() {
  at("chat-form").addEventListener("submit", (event) => { event.preventDefault(); if (!stopping) busy("Writing…", send); });
  at("message").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); at("chat-form").requestSubmit(); }
  });
  at("chat-stop").addEventListener("click", () => stopping?.abort());
  at("chat-check").addEventListener("click", () => busy("Detecting…", check));
  at("chat-new").addEventListener("click", () => {
    turns = [];
    at("turns").replaceChildren();
    at("chat-result").replaceChildren();
    buttons();
  });
}
