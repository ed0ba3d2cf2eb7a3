// Keys and tokens, for administrators: lists, creates, activates, rotates and retires keys; creates and revokes tokens.

import { element } from "/page/show.js";
import { get, post, remove } from "/page/server.js";

const at = (id) => document.getElementById(id);
const day = (seconds) => (seconds ? new Date(1000 * seconds).toISOString().slice(0, 10) : "");

async function busy(work) {
  at("manage-error").textContent = "";
  try {
    await work();
  } catch (error) {
    at("manage-error").textContent = error.message;
  }
}

// A button that asks again before it does something that cannot be undone.
function button(title, work, sure = "") {
  const node = element("button", { type: "button", onclick: () => {
    if (sure && node.textContent !== sure) node.textContent = sure;
    else busy(async () => { await work(); await show(); });
  } }, title);
  return node;
}

function table(name, titles, rows) {
  return element("div", { class: "scroll" }, element("table", { "aria-label": name },
    element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title)))),
    element("tbody", {}, ...rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, ...[cell].flat())))))));
}

function state(key) {
  if (!key.alive) return "ended";
  return key.marks ? "marks new text" : "detects";
}

function keyRow(key) {
  const path = `/v1/keys/${key.id}`;
  const actions = key.alive ? [
    ...(key.marks ? [] : [button("Activate", () => post(`${path}/activate`, {}))]), " ",
    ...(key.successor ? [] : [button("Rotate", () => post(`${path}/rotate`, {}))]), " ",
    button("Retire", () => post(`${path}/retire`, {}), "Retire for ever?"),
  ] : [];
  return [key.id, key.tenant, state(key), day(key.created), day(key.ends), actions];
}

function tokenRow(token) {
  return [token.id, token.name, token.roles.join(", "), token.tenant, day(token.created),
    button("Revoke", () => remove(`/v1/tokens/${token.id}`), "Revoke for ever?")];
}

export async function show() {
  await busy(async () => {
    const [keys, tokens] = await Promise.all([get("/v1/keys"), get("/v1/tokens")]);
    at("keys").replaceChildren(table("Keys", ["Key id", "Tenant", "State", "Created", "Ends", "Actions"], keys.map(keyRow)));
    at("tokens").replaceChildren(table("Tokens", ["Token id", "Name", "Roles", "Tenant", "Created", "Actions"], tokens.map(tokenRow)));
  });
}

async function createKey() {
  await post("/v1/keys", { tenant: at("key-tenant").value.trim() });
  await show();
}

async function createToken() {
  const roles = [...document.querySelectorAll("#token-create [name=role]:checked")].map((box) => box.value);
  if (!roles.length) throw new Error("Choose at least one role.");
  const made = await post("/v1/tokens", { roles, name: at("token-name").value.trim(), tenant: at("token-tenant").value.trim() });
  at("new-token").replaceChildren("The new token, which is shown only now: ", element("code", {}, made.token));
  await show();
}

export function start() {
  at("key-create").addEventListener("submit", (event) => { event.preventDefault(); busy(createKey); });
  at("token-create").addEventListener("submit", (event) => { event.preventDefault(); busy(createToken); });
}
