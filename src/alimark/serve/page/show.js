// Shows a detection: the verdict in words, the text coloured by how likely each sentence carries the mark, and the alignment.
// Texts are never inserted as HTML.

const SVG = "http://www.w3.org/2000/svg";
const ROWS = 400; // the drawing shows at most this many steps
const LIKELY = 0.8, PERHAPS = 0.5; // as on the command line

export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

function shape(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const percent = (chance) => `${Math.round(100 * chance)}%`;
export const number = (value) => (value < 0.0001 ? value.toExponential(1) : value.toPrecision(2));

const p = (value) => (value.startsWith("<=") ? `p ${value}` : `p = ${value}`);

// Half of the bits of a new sentence agree by chance: fewer are red, more are green.
export function shade(agreed, bits) {
  if (agreed === null || agreed === undefined) return "none";
  return `a${Math.min(5, Math.max(0, Math.round((agreed / bits - 0.25) / 0.75 * 5)))}`;
}

// Colours show the probability that a sentence carries the mark: the bits of sentences without a mark often agree, too.
function likely(chance) {
  if (chance === null || chance === undefined) return "none";
  return chance >= LIKELY ? "likely" : chance >= PERHAPS ? "perhaps" : "unlikely";
}

const carries = (payload) => payload
  ? ` It carries the payload ${payload.value}, which is right with probability ${payload.confidence.toPrecision(4)}.` : "";

export function inWords(detection, fpr) {
  const keys = detection.keys_tried > 1 ? `, corrected for the ${detection.keys_tried} keys that were tried` : "";
  return [detection.statement,
    `${detection.verdict} at a false-positive rate of ${fpr}: ${p(detection.p_text)}${keys}, key ${detection.key_id}.${carries(detection.payload)}`];
}

export function result(detection, fpr, name) {
  const { evidence, sentence_chances: chances } = detection;
  const [verdict, why] = inWords(detection, fpr);
  const panel = element("div", { class: "panel", "data-verdict": detection.verdict });
  panel.append(element("p", { class: "verdict" }, verdict), element("p", { class: "why" }, why));
  if (detection.caveat) panel.append(element("p", { class: "note" }, detection.caveat));
  if (detection.searched?.length > 1)
    panel.append(element("p", { class: "note" }, "The text was searched as a whole and for marked passages; the p-value pays for both."));
  for (const warning of detection.warnings ?? []) panel.append(element("p", { class: "note" }, warning));
  for (const change of detection.changes ?? []) panel.append(element("p", { class: "note" }, `${change}.`));
  for (const passage of detection.passages ?? [])
    panel.append(element("p", { class: "found-passage" },
      `Marked passage: sentences ${passage.first} to ${passage.last}, p = ${number(passage.p_value)}.`));
  panel.append(
    element("p", { class: "note" }, `Score ${detection.score.toFixed(2)}, ${detection.sentence_count} sentences, record ${detection.record_id}.`),
    download(evidence, name),
    element("h2", {}, "The text, sentence by sentence"), legend(), text(evidence, chances),
    element("details", { open: detection.verdict === "found", class: "drawing" }, element("summary", {}, "The alignment"),
      element("div", { class: "scroll" }, alignment(evidence, chances)), steps(evidence, chances)),
  );
  return panel;
}

function download(evidence, name) {
  const file = new Blob([JSON.stringify(evidence, null, 2)], { type: "application/json" });
  const link = element("a", { href: URL.createObjectURL(file), download: `${name}.evidence.json`, class: "download" });
  link.append("Download the evidence");
  return link;
}

export function legend() {
  const paragraph = element("p", { class: "legend" }, "Carries the mark, compared with random keys:");
  for (const [chance, label] of [[LIKELY, "likely (80% or more)"], [PERHAPS, "perhaps (50% or more)"], [0, "not shown"]])
    paragraph.append(element("span", { class: likely(chance) }, label));
  paragraph.append(element("span", { class: "none" }, "no block"));
  return paragraph;
}

// The probability of a step's sentences; null where nothing was compared.
function chanceOf(step, chances) {
  return step.agreed === null ? null : Math.max(0, ...step.sentences.map((sentence) => chances[sentence - 1] ?? 0));
}

// What happened to the sentences of a step.
const WORDS = { "match": "kept", "merge": "merged", "split": "split", "skip-sentence": "inserted", "skip-block": "deleted" };
const change = (step) => (step.elsewhere ? `moved from ${step.elsewhere}` : WORDS[step.kind]) + (step.part ? ` (${step.part} half)` : "");

// Describes a step of the alignment. Its strength is the share of random keys that fit the sentence less well.
function describe(step, chances) {
  if (step.kind === "skip-block") return `block ${step.block}: deleted, no sentence carries it`;
  const which = step.sentences.length > 1 ? `sentences ${step.sentences.join(" and ")}` : `sentence ${step.sentences[0]}`;
  if (step.kind === "skip-sentence") return `${which}: ${change(step)}, no block`;
  const chance = chances.length ? `, marked with probability ${percent(chanceOf(step, chances))}` : "";
  return `${which}: ${change(step)}, block ${step.block}, stronger than with ${percent(step.strength)} of random keys${chance}`;
}

export function text(evidence, chances) {
  const paragraph = element("p", { class: "text" });
  evidence.sentences.forEach((sentence, i) => {
    const steps = evidence.alignment.filter((step) => step.sentences.includes(i + 1));
    const compared = steps.some((step) => step.agreed !== null);
    const passage = evidence.passages.some((range) => range.first <= i + 1 && i + 1 <= range.last) ? " passage" : "";
    paragraph.append(element("span", {
      class: likely(compared ? chances[i] ?? 0 : null) + passage, "data-sentence": i + 1,
      title: steps.map((step) => describe(step, chances)).join("; ") || `sentence ${i + 1}: outside the alignment`,
    }, sentence), " ");
  });
  return paragraph;
}

// Draws the sentences on the left and the blocks of the key on the right, each in order, with a line for every match.
export function alignment(evidence, chances = []) {
  const rows = evidence.alignment.slice(0, ROWS);
  const left = new Map(), right = new Map();
  rows.forEach((step) => {
    step.sentences.forEach((sentence) => left.has(sentence) || left.set(sentence, left.size));
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
    "aria-label": `${matched} units of the text match blocks of the key, ${skipped} sentences match no block, ${missing} blocks are missing. `
      + "The table below lists every step.",
  });
  picture.append(shape("text", { x: 20, y: 14 }, "sentences"), shape("text", { x: boxes.right, y: 14 }, "blocks of the key"));
  for (const [sentence] of left) {
    const compared = rows.some((step) => step.agreed !== null && step.sentences.includes(sentence));
    picture.append(box(20, y(left, sentence), 110, `${sentence}`, compared ? likely(chances[sentence - 1] ?? 0) : "none gone"));
  }
  for (const [block] of right) {
    const chance = chanceOf(rows.find((step) => step.block === block), chances);
    picture.append(box(boxes.right, y(right, block), 110, `${block}`, chance === null ? "none gone" : likely(chance)));
  }
  for (const step of rows) picture.append(line(step, chances, boxes, (sentence) => y(left, sentence), (block) => y(right, block)));
  return picture;
}

function box(x, y, width, label, kind) {
  const gone = kind.endsWith("gone");
  return shape("g", { class: gone ? "gone" : "" },
    shape("rect", { x, y: y - 11, width, height: 22, rx: 4, class: kind.split(" ")[0] }),
    shape("text", { x: x + 8, y: y + 4 }, gone && x > 200 ? `${label} (missing)` : gone ? `${label} (no block)` : label));
}

function line(step, chances, boxes, leftY, rightY) {
  const group = shape("g", { class: `step ${step.kind}`, tabindex: step.agreed === null ? -1 : 0 }, shape("title", {}, describe(step, chances)));
  if (step.agreed === null) return group;
  const ends = step.sentences.map(leftY), to = rightY(step.block);
  const half = step.part === "left" ? -5 : step.part === "right" ? 5 : 0;
  const from = ends.reduce((sum, end) => sum + end, 0) / ends.length + half;
  if (ends.length > 1) // a bracket around merged sentences
    group.append(shape("path", { d: `M${boxes.left + 4} ${ends[0]} h8 V${ends[ends.length - 1]} h-8` }));
  if (step.part) // a bracket at the half of a split sentence
    group.append(shape("path", { d: `M${boxes.left + 4} ${from - 4} h6 v8 h-6` }));
  const start = boxes.left + (ends.length > 1 || step.part ? 13 : 2);
  group.append(
    shape("path", { d: `M${start} ${from} C ${boxes.left + 50} ${from}, ${boxes.right - 50} ${to}, ${boxes.right - 2} ${to}` }),
    shape("rect", { x: boxes.right + 70, y: to - 3, width: Math.round(36 * step.strength), height: 6, class: "strength" }));
  return group;
}

export function steps(evidence, chances) {
  const rows = evidence.alignment.map((step) => element("tr", {},
    element("td", {}, change(step)), element("td", {}, step.sentences.join("+")),
    element("td", {}, step.block === null ? "" : String(step.block)),
    element("td", {}, ...(step.strength === null ? [] : [element("meter", { value: step.strength })])),
    element("td", {}, step.agreed === null || !chances.length ? "" : percent(chanceOf(step, chances)))));
  return element("details", {}, element("summary", {}, "The alignment as a table"), element("table", {},
    element("thead", {}, element("tr", {}, ...["change", "sentence", "block", "strength", "marked"].map((title) => element("th", { scope: "col" }, title)))),
    element("tbody", {}, ...rows)));
}
