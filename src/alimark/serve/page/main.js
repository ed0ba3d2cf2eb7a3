// Switches the tabs and stores the token; check.js and write.js do the work of the tabs.

import * as check from "/page/check.js";
import * as write from "/page/write.js";
import { token } from "/page/server.js";

const tabs = [...document.querySelectorAll("[role=tab]")];

function select(selectedTab) {
  for (const tab of tabs) {
    const selected = tab === selectedTab;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).hidden = !selected;
  }
  selectedTab.focus();
}

tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) select(tabs[(i + step + tabs.length) % tabs.length]);
  });
});

const field = document.getElementById("token");
field.value = token.get();
document.getElementById("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(field.value.trim());
  document.getElementById("token-note").textContent = field.value
    ? "The token is kept in this browser tab until you close it." : "No token is set. Enter a token to use the page.";
});

check.start();
write.start();
