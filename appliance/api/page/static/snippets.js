// A request as a command or program that people can take away. The key is never in it.

import { getKey, urlOf } from "./api.js";

export function asCurl(body) {
  const lines = [`curl -N ${quote(urlOf("/v1/chat/completions"))}`, `-H 'Content-Type: application/json'`];
  if (getKey()) lines.push(`-H "Authorization: Bearer $BREADBOX_API_KEY"`);
  lines.push(`-d ${quote(JSON.stringify(body, null, 2))}`);
  return lines.join(" \\\n  ") + "\n";
}

export function asPython(body) {
  const { model, messages, stream: _stream, stream_options: _options, ...rest } = body;
  const known = new Set(["temperature", "max_tokens", "top_p", "seed"]);
  const own = Object.entries(rest).filter(([name]) => known.has(name));
  const extra = Object.fromEntries(Object.entries(rest).filter(([name]) => !known.has(name)));
  const key = getKey() ? `os.environ["BREADBOX_API_KEY"]` : `"no-key-needed"`;
  const options = [
    `    model=${literal(model)},`,
    `    messages=${literal(messages, 1)},`,
    ...own.map(([name, value]) => `    ${name}=${literal(value)},`),
    ...(Object.keys(extra).length ? [`    extra_body=${literal(extra, 1)},`] : []),
    "    stream=True,",
  ];
  return [
    ...(getKey() ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(urlOf("/v1"))}, api_key=${key})`,
    "stream = client.chat.completions.create(",
    ...options,
    ")",
    "for chunk in stream:",
    "    if chunk.choices:",
    '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
    "print()",
    "",
  ].join("\n");
}

function quote(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

// JSON's strings and numbers are Python's as well; its three words are not.
function literal(value, depth = 0) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const indent = "    ".repeat(depth + 1);
  const items = Array.isArray(value)
    ? value.map((item) => `${indent}${flat(item)},`)
    : Object.entries(value).map(([name, item]) => `${indent}${JSON.stringify(name)}: ${flat(item)},`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return [open, ...items, "    ".repeat(depth) + close].join("\n");
}

function flat(value) {
  if (value === null || typeof value !== "object") return literal(value);
  if (Array.isArray(value)) return `[${value.map(flat).join(", ")}]`;
  return `{${Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${flat(item)}`).join(", ")}}`;
}
