// Shows a detection: the verdict in words, the text coloured by agreement, and the alignment. Texts are never inserted as HTML.

const SVG = "http://www.w3.org/2000/svg";
const ROWS = 400; // the drawing shows at most this many steps

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

export const number = (value) => (value < 0.0001 ? value.toExponential(1) : value.toPrecision(2));

// Half of the bits agree by chance: fewer are red, more are green.
export function shade(agreed, bits) {
  if (agreed === null || agreed === undefined) return "none";
  return `a${Math.min(5, Math.max(0, Math.round((agreed / bits - 0.25) / 0.75 * 5)))}`;
}

const carries = (payload) => payload
  ? ` It carries the payload ${payload.value}, which is right with probability ${payload.confidence.toPrecision(4)}.` : "";

export function inWords(detection, fpr) {
  const chance = `p = ${number(detection.p_value)}`;
  const keys = detection.keys_tried > 1 ? `, corrected for the ${detection.keys_tried} keys that were tried` : "";
  const needed = detection.sentences_needed ? `about ${detection.sentences_needed}` : "more than 40";
  if (detection.verdict === "found")
    return [`The watermark of key ${detection.key_id} was found.`,
      `The p-value is ${number(detection.p_value)}${keys}: a text without this watermark scores this high with at most this probability.${carries(detection.payload)}`];
  if (detection.verdict === "too short to tell")
    return ["The text is too short for a verdict.",
      `It has ${detection.sentences} sentences; ${needed} are needed (${chance}${keys}).`];
  return ["No watermark was found.", `${chance}${keys}; the limit is ${fpr}. This does not mean that a person wrote it.`];
}

export function result(detection, fpr, name) {
  const evidence = detection.evidence;
  const [verdict, why] = inWords(detection, fpr);
  const panel = element("div", { class: "panel", "data-verdict": detection.verdict });
  panel.append(element("p", { class: "verdict" }, verdict), element("p", { class: "why" }, why));
  for (const warning of detection.warnings ?? []) panel.append(element("p", { class: "note" }, warning));
  for (const change of detection.normalised ?? []) panel.append(element("p", { class: "note" }, `${change}.`));
  for (const passage of detection.passages ?? [])
    panel.append(element("p", { class: "found-passage" },
      `Marked passage: sentences ${passage.first} to ${passage.last}, p = ${number(passage.p_value)}.`));
  panel.append(
    element("p", { class: "note" }, `Score ${detection.score.toFixed(2)}, ${detection.sentences} sentences, record ${detection.record_id}.`),
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

export function legend(bits) {
  const paragraph = element("p", { class: "legend" }, "Bits of the key that agree with a sentence:");
  for (const [share, label] of [[0.25, "few"], [0.5, "half (by chance)"], [0.75, "many"], [1, `all ${bits}`]])
    paragraph.append(element("span", { class: shade(share * bits, bits) }, label));
  paragraph.append(element("span", { class: "none" }, "no block"));
  return paragraph;
}

// Describes a step of the alignment.
function describe(step, bits) {
  const which = step.sentences.length > 1 ? `sentences ${step.sentences.join(" and ")} as one` : `sentence ${step.sentences[0]}`;
  const part = step.part ? ` (${step.part} half)` : "";
  if (step.kind === "skip-block") return `block ${step.block}: no sentence carries it`;
  if (step.kind === "skip-sentence") return `${which}${part}: no block`;
  return `${which}${part}, block ${step.block}: ${step.agreed} of ${bits} bits`;
}

export function text(evidence) {
  const bits = evidence.block_size;
  const paragraph = element("p", { class: "text" });
  evidence.sentences.forEach((sentence, i) => {
    const steps = evidence.alignment.filter((step) => step.sentences.includes(i + 1));
    const best = Math.max(...steps.map((step) => step.agreed ?? -1));
    const passage = evidence.passages.some((range) => range.first <= i + 1 && i + 1 <= range.last) ? " passage" : "";
    paragraph.append(element("span", {
      class: shade(best < 0 ? null : best, bits) + passage, "data-sentence": i + 1,
      title: steps.map((step) => describe(step, bits)).join("; ") || `sentence ${i + 1}: outside the alignment`,
    }, sentence), " ");
  });
  return paragraph;
}

// Draws the sentences on the left and the blocks of the key on the right, each in order, with a line for every match.
export function alignment(evidence) {
  const bits = evidence.block_size, rows = evidence.alignment.slice(0, ROWS);
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
    const steps = rows.filter((step) => step.sentences.includes(sentence));
    const best = Math.max(...steps.map((step) => step.agreed ?? -1));
    picture.append(box(20, y(left, sentence), 110, `${sentence}`, best < 0 ? "none gone" : shade(best, bits)));
  }
  for (const [block] of right) {
    const { agreed } = rows.find((step) => step.block === block);
    picture.append(box(boxes.right, y(right, block), 110, `${block}`, agreed === null ? "none gone" : shade(agreed, bits)));
  }
  for (const step of rows) picture.append(line(step, bits, boxes, (sentence) => y(left, sentence), (block) => y(right, block)));
  return picture;
}

function box(x, y, width, label, kind) {
  const gone = kind.endsWith("gone");
  return shape("g", { class: gone ? "gone" : "" },
    shape("rect", { x, y: y - 11, width, height: 22, rx: 4, class: kind.split(" ")[0] }),
    shape("text", { x: x + 8, y: y + 4 }, gone && x > 200 ? `${label} (missing)` : gone ? `${label} (no block)` : label));
}

function line(step, bits, boxes, leftY, rightY) {
  const group = shape("g", { class: `step ${step.kind}`, tabindex: step.agreed === null ? -1 : 0 }, shape("title", {}, describe(step, bits)));
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
    shape("text", { x: boxes.right + 74, y: to + 4, class: "bits" }, `${step.agreed}/${bits}`));
  return group;
}

export function steps(evidence) {
  const rows = evidence.alignment.map((step) => element("tr", {},
    element("td", {}, step.kind + (step.part ? ` (${step.part})` : "")), element("td", {}, step.sentences.join("+")),
    element("td", {}, step.block === null ? "" : String(step.block)),
    element("td", {}, step.agreed === null ? "" : `${step.agreed} of ${evidence.block_size}`)));
  return element("details", {}, element("summary", {}, "The alignment as a table"), element("table", {},
    element("thead", {}, element("tr", {}, ...["step", "sentence", "block", "bits that agree"].map((title) => element("th", { scope: "col" }, title)))),
    element("tbody", {}, ...rows)));
}
