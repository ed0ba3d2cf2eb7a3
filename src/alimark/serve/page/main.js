// Tabs and the token; the tabs' work stands in check.js and write.js.

import * as check from "/page/check.js";
import * as write from "/page/write.js";
import { token } from "/page/server.js";

const tabs = [...document.querySelectorAll("[role=tab]")];

function choose(tab) {
  for (const one of tabs) {
    const mine = one === tab;
    one.setAttribute("aria-selected", String(mine));
    one.tabIndex = mine ? 0 : -1;
    document.getElementById(one.getAttribute("aria-controls")).hidden = !mine;
  }
  tab.focus();
}

tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) choose(tabs[(i + step + tabs.length) % tabs.length]);
  });
});

const field = document.getElementById("token");
field.value = token.get();
document.getElementById("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(field.value.trim());
  document.getElementById("token-note").textContent = field.value ? "Kept in this tab until it is closed." : "No token.";
});

check.start();
write.start();
