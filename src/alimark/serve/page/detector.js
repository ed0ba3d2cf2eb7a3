// The page for everybody: asks whether a text carries the mark of this service, and offers the signed answer.

import { postForText } from "/page/server.js";

const at = (id) => document.getElementById(id);
const MEANINGS = {
  "found": "The text very likely comes from this AI, or from somebody who imitates its mark.",
  "not found": "",
  "too short to tell": "Send more sentences of the same text.",
};

async function introduce() {
  const answer = await fetch("/.well-known/alimark");
  if (!answer.ok) return; // the operator has given no name
  const { operator, marks, contact, terms, limits } = await answer.json();
  at("operator").textContent = `the AI of ${operator}`;
  at("limits").textContent += ` At most ${limits.characters.toLocaleString("en")} characters, and ${limits.texts_a_day} texts a day.`;
  if (marks) at("marks").textContent = `It marks: ${marks}.`;
  if (contact) at("contact").textContent = `Questions: ${contact}.`;
  if (terms) at("terms").textContent = `Terms of use: ${terms}`;
}

at("address").textContent = location.origin;
at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  at("result").hidden = true;
  at("error").textContent = "";
  at("status").textContent = "Checking…";
  try {
    const signed = await postForText("/v1/verdict", { input: at("text").value.trim() }, "application/jose");
    const { statement, verdict } = JSON.parse(atob(signed.split(".")[1].replaceAll("-", "+").replaceAll("_", "/")));
    [at("verdict").textContent, at("meaning").textContent] = [statement, MEANINGS[verdict]];
    URL.revokeObjectURL(at("download").href);
    at("download").href = URL.createObjectURL(new Blob([signed], { type: "application/jose" }));
    at("result").hidden = false;
  } catch (error) {
    at("error").textContent = error.message;
  }
  at("status").textContent = "";
});
introduce();
