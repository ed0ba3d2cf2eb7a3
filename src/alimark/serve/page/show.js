// Draws what a detection found: the verdict in words, the text by agreement, the alignment. Text goes in as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";
const ROWS = 400; // more are not drawn

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const number = (value) => (value < 0.0001 ? value.toExponential(1) : value.toPrecision(2));

// Chance is half of the bits: below that is red, above it green.
export function shade(agreed, bits) {
  if (agreed === null || agreed === undefined) return "none";
  return `a${Math.min(5, Math.max(0, Math.round((agreed / bits - 0.25) / 0.75 * 5)))}`;
}

export function inWords(found, fpr) {
  const chance = `p = ${number(found.p_value)}`;
  const keys = found.keys_tried > 1 ? `, corrected for ${found.keys_tried} keys tried` : "";
  if (found.verdict === "found")
    return [`The mark of key ${found.key_id} was found.`,
      `A text that has nothing to do with the key looks like this with ${chance}${keys}.`];
  if (found.verdict === "too short to tell")
    return ["The text is too short to tell.",
      `${found.sentences} sentences; about ${found.sentences_needed ?? "more than 40"} would be needed (${chance}${keys}).`];
  return ["No mark was found.", `${chance}${keys}, and the limit is ${fpr}. That does not mean that a person wrote it.`];
}

export function result(found, fpr, name) {
  const evidence = found.evidence;
  const [verdict, why] = inWords(found, fpr);
  const panel = element("div", { class: "panel", "data-verdict": found.verdict });
  panel.append(element("p", { class: "verdict" }, verdict), element("p", { class: "why" }, why));
  for (const warning of found.warnings ?? []) panel.append(element("p", { class: "note" }, warning));
  for (const one of found.passages ?? [])
    panel.append(element("p", { class: "found-passage" },
      `Marked passage: sentences ${one.first} to ${one.last}, p = ${number(one.p_value)}.`));
  panel.append(
    element("p", { class: "note" }, `Score ${found.score.toFixed(2)}, ${found.sentences} sentences, record ${found.record_id}.`),
    download(evidence, name),
    element("h2", {}, "The text, sentence by sentence"), legend(evidence.block_size), text(evidence),
    element("h2", {}, "The alignment"), element("div", { class: "scroll" }, alignment(evidence)), steps(evidence),
  );
  return panel;
}

function download(evidence, name) {
  const file = new Blob([JSON.stringify(evidence, null, 2)], { type: "application/json" });
  const link = element("a", { href: URL.createObjectURL(file), download: `${name}.evidence.json`, class: "download" });
  link.append("Download the evidence");
  return link;
}

function legend(bits) {
  const made = element("p", { class: "legend" }, "Bits of the key that a sentence carries:");
  for (const [share, said] of [[0.25, "few"], [0.5, "as by chance"], [0.75, "many"], [1, `all ${bits}`]])
    made.append(element("span", { class: shade(share * bits, bits) }, said));
  made.append(element("span", { class: "none" }, "no block"));
  return made;
}

function said(step, bits) {
  const which = step.sentences.length > 1 ? `sentences ${step.sentences.join(" and ")} as one` : `sentence ${step.sentences[0]}`;
  const part = step.part ? ` (${step.part} half)` : "";
  if (step.kind === "skip-block") return `block ${step.block}: no sentence carries it`;
  if (step.kind === "skip-sentence") return `${which}${part}: no block`;
  return `${which}${part}, block ${step.block}: ${step.agreed} of ${bits} bits`;
}

function text(evidence) {
  const bits = evidence.block_size;
  const shown = element("p", { class: "text" });
  evidence.sentences.forEach((sentence, i) => {
    const mine = evidence.alignment.filter((step) => step.sentences.includes(i + 1));
    const best = Math.max(...mine.map((step) => step.agreed ?? -1));
    const passage = evidence.passages.some((one) => one.first <= i + 1 && i + 1 <= one.last) ? " passage" : "";
    shown.append(element("span", {
      class: shade(best < 0 ? null : best, bits) + passage, "data-sentence": i + 1,
      title: mine.map((step) => said(step, bits)).join("; ") || `sentence ${i + 1}: outside`,
    }, sentence), " ");
  });
  return shown;
}

// Sentences on the left, blocks of the key on the right, each in its order; a line for every match.
export function alignment(evidence) {
  const bits = evidence.block_size, rows = evidence.alignment.slice(0, ROWS);
  const left = new Map(), right = new Map();
  rows.forEach((step) => {
    step.sentences.forEach((one) => left.has(one) || left.set(one, left.size));
    if (step.block !== null) right.has(step.block) || right.set(step.block, right.size);
  });
  const gap = 34, top = 26, boxes = { left: 130, right: 250 };
  const height = top + gap * Math.max(left.size, right.size, 1);
  const y = (places, which) => top + gap * places.get(which) + 12;
  const matched = rows.filter((step) => step.agreed !== null).length;
  const skipped = rows.filter((step) => step.kind === "skip-sentence").length;
  const missing = rows.filter((step) => step.kind === "skip-block").length;
  const picture = shape("svg", {
    class: "alignment", viewBox: `0 0 400 ${height}`, role: "img",
    "aria-label": `${matched} units of the text meet blocks of the key, ${skipped} sentences meet none, ${missing} blocks are missing. `
      + "The table below tells each.",
  });
  picture.append(shape("text", { x: 20, y: 14 }, "sentences"), shape("text", { x: boxes.right, y: 14 }, "blocks of the key"));
  for (const [one] of left) {
    const mine = rows.filter((step) => step.sentences.includes(one));
    const best = Math.max(...mine.map((step) => step.agreed ?? -1));
    picture.append(box(20, y(left, one), 110, `${one}`, best < 0 ? "none gone" : shade(best, bits)));
  }
  for (const [one] of right) {
    const mine = rows.find((step) => step.block === one);
    picture.append(box(boxes.right, y(right, one), 110, `${one}`, mine.agreed === null ? "none gone" : shade(mine.agreed, bits)));
  }
  for (const step of rows) picture.append(line(step, bits, boxes, (one) => y(left, one), (one) => y(right, one)));
  return picture;
}

function box(x, y, width, label, kind) {
  const gone = kind.endsWith("gone");
  return shape("g", { class: gone ? "gone" : "" },
    shape("rect", { x, y: y - 11, width, height: 22, rx: 4, class: kind.split(" ")[0] }),
    shape("text", { x: x + 8, y: y + 4 }, gone && x > 200 ? `${label} (missing)` : gone ? `${label} (no block)` : label));
}

function line(step, bits, boxes, leftY, rightY) {
  const group = shape("g", { class: `step ${step.kind}`, tabindex: step.agreed === null ? -1 : 0 }, shape("title", {}, said(step, bits)));
  if (step.agreed === null) return group;
  const ends = step.sentences.map(leftY), to = rightY(step.block);
  const half = step.part === "left" ? -5 : step.part === "right" ? 5 : 0;
  const from = ends.reduce((sum, one) => sum + one, 0) / ends.length + half;
  if (ends.length > 1) // a bracket around what was merged
    group.append(shape("path", { d: `M${boxes.left + 4} ${ends[0]} h8 V${ends[ends.length - 1]} h-8` }));
  if (step.part) // and one at the half of what was split
    group.append(shape("path", { d: `M${boxes.left + 4} ${from - 4} h6 v8 h-6` }));
  const start = boxes.left + (ends.length > 1 || step.part ? 13 : 2);
  group.append(
    shape("path", { d: `M${start} ${from} C ${boxes.left + 50} ${from}, ${boxes.right - 50} ${to}, ${boxes.right - 2} ${to}` }),
    shape("text", { x: boxes.right + 74, y: to + 4, class: "bits" }, `${step.agreed}/${bits}`));
  return group;
}

function steps(evidence) {
  const rows = evidence.alignment.map((step) => element("tr", {},
    element("td", {}, step.kind + (step.part ? ` (${step.part})` : "")), element("td", {}, step.sentences.join("+")),
    element("td", {}, step.block === null ? "" : String(step.block)),
    element("td", {}, step.agreed === null ? "" : `${step.agreed} of ${evidence.block_size}`)));
  return element("details", {}, element("summary", {}, "The alignment as a table"), element("table", {},
    element("thead", {}, element("tr", {}, ...["move", "sentence", "block", "bits agreed"].map((one) => element("th", { scope: "col" }, one)))),
    element("tbody", {}, ...rows)));
}
