// The Markdown that models write, as elements: text only ever becomes text nodes, so nothing in it can be markup.

const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]+?)\*\*|(?<![\w*])\*(?=[^\s*])([^*\n]+?)\*(?![\w*])|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/;
const FENCE = /^\s*(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const QUOTE = /^>\s?(.*)$/;
const RULE = /^\s*([-*_])(?:\s*\1){2,}\s*$/;

// Replaces what `parent` holds.
export function renderMarkdown(parent, text) {
  parent.replaceChildren(...blocks(text.split("\n")));
}

function* blocks(lines) {
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    const [read] = [readFence, readHeading, readRule, readQuote, readList].map((reader) => reader(lines, at)).filter(Boolean);
    const [element, next] = read ?? (line.trim() ? readParagraph(lines, at) : [null, at + 1]);
    if (element) yield element;
    at = next;
  }
}

function readFence(lines, at) {
  const match = FENCE.exec(lines[at]);
  if (!match) return null;
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(match[1])) end += 1;
  const figure = make("figure", { className: "code" });
  const bar = make("figcaption");
  const code = lines.slice(at + 1, end).join("\n");
  const copy = make("button", { type: "button", className: "quiet", textContent: "Copy" });
  copy.dataset.copy = "code";
  bar.append(make("span", { textContent: match[2] || "text" }), copy);
  const pre = make("pre");
  pre.tabIndex = 0;
  pre.append(make("code", { textContent: code }));
  figure.append(bar, pre);
  return [figure, end + 1];
}

function readHeading(lines, at) {
  const match = HEADING.exec(lines[at]);
  if (!match) return null;
  // The page has headings of its own above these.
  const heading = make(`h${Math.min(6, match[1].length + 2)}`);
  heading.append(...inline(match[2]));
  return [heading, at + 1];
}

function readRule(lines, at) {
  return RULE.test(lines[at]) ? [make("hr"), at + 1] : null;
}

function readQuote(lines, at) {
  if (!QUOTE.test(lines[at])) return null;
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const quote = make("blockquote");
  quote.append(...blocks(lines.slice(at, end).map((line) => QUOTE.exec(line)[1])));
  return [quote, end];
}

function readList(lines, at) {
  const first = ITEM.exec(lines[at]);
  if (!first) return null;
  const isOrdered = first[2] !== undefined;
  const list = make(isOrdered ? "ol" : "ul");
  if (isOrdered) list.start = Number(first[2]);
  let end = at;
  while (end < lines.length) {
    const match = ITEM.exec(lines[end]);
    if (!match || match[1].length < first[1].length || (match[2] !== undefined) !== isOrdered) break;
    const [item, next] = readItem(lines, end, match);
    list.append(item);
    end = next;
  }
  return [list, end];
}

// An item holds what is indented deeper, such as lists of its own.
function readItem(lines, at, match) {
  const depth = match[1].length;
  let end = at + 1;
  while (end < lines.length && (isDeeper(lines[end], depth) || (!lines[end].trim() && isDeeper(lines[end + 1] ?? "", depth)))) end += 1;
  const item = make("li");
  item.append(...inline(match[3]));
  item.append(...blocks(lines.slice(at + 1, end)));
  // Items may stand apart from each other.
  while (end < lines.length - 1 && !lines[end].trim() && ITEM.test(lines[end + 1])) end += 1;
  return [item, end];
}

function isDeeper(line, depth) {
  return line.trim() !== "" && line.length - line.trimStart().length > depth;
}

function readParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !isBlockStart(lines[end])) end += 1;
  const paragraph = make("p");
  lines.slice(at, end).forEach((line, i) => paragraph.append(...(i ? [make("br")] : []), ...inline(line)));
  return [paragraph, end];
}

function isBlockStart(line) {
  return [FENCE, HEADING, ITEM, QUOTE, RULE].some((pattern) => pattern.test(line));
}

function* inline(text) {
  for (;;) {
    const match = INLINE.exec(text);
    if (!match) break;
    if (match.index) yield document.createTextNode(text.slice(0, match.index));
    yield inlineElement(match);
    text = text.slice(match.index + match[0].length);
  }
  if (text) yield document.createTextNode(text);
}

function inlineElement([, , code, bold, italic, label, url]) {
  if (code !== undefined) return make("code", { textContent: code });
  if (url !== undefined) return make("a", { href: url, textContent: label, rel: "noopener noreferrer nofollow", target: "_blank" });
  const element = make(bold !== undefined ? "strong" : "em");
  element.append(...inline(bold ?? italic));
  return element;
}

function make(name, properties = {}) {
  return Object.assign(document.createElement(name), properties);
}
