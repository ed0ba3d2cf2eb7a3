// Switches the tabs, stores the token and shows the tabs that the token's roles allow; other modules do the work of the tabs.

import * as chat from "/page/chat.js";
import * as check from "/page/check.js";
import * as manage from "/page/manage.js";
import * as rewrite from "/page/rewrite.js";
import * as write from "/page/write.js";
import { get, token } from "/page/server.js";

const KEPT = "The token is kept in this browser tab until you close it.";
const tabs = [...document.querySelectorAll("[role=tab]")];
const visible = () => tabs.filter((tab) => !tab.hidden);

function select(selectedTab) {
  for (const tab of tabs) {
    const selected = tab === selectedTab;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).hidden = !selected;
  }
  if (selectedTab.id === "tab-manage") manage.show();
}

for (const tab of tabs) {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], shown = visible();
    if (!step) return;
    const next = shown[(shown.indexOf(tab) + step + shown.length) % shown.length];
    select(next);
    next.focus();
  });
}

// Shows the tabs for which the token has the role. What the server answers decides; the page hides only what it would refuse.
async function useToken() {
  const note = document.getElementById("token-note");
  note.classList.remove("error");
  if (!token.get()) {
    note.textContent = "No token is set. Enter a token to use the page.";
    return;
  }
  const asked = token.get();
  let roles;
  try {
    ({ roles } = await get("/v1/token"));
  } catch (error) {
    note.textContent = error.message;
    note.classList.add("error");
    return;
  }
  if (token.get() !== asked) return; // another token was entered meanwhile, and its roles are on their way
  note.textContent = `Roles: ${roles.join(", ")}. ${KEPT}`;
  for (const tab of tabs) tab.hidden = !tab.dataset.roles.split(" ").every((role) => roles.includes(role));
  if (!visible().length) location.assign("/detector"); // the role verdict alone
  const current = tabs.find((tab) => tab.getAttribute("aria-selected") === "true");
  if (current.hidden) select(visible()[0]);
  if (roles.includes("generate")) await write.offerAttacks();
  chat.mayCheck(roles.includes("detect"));
}

const field = document.getElementById("token");
field.value = token.get();
document.getElementById("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(field.value.trim());
  useToken();
});

for (const part of [chat, check, manage, rewrite, write]) part.start();
if (token.get()) useToken();
