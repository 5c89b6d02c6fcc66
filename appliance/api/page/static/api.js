// Speaks to the box: the key, JSON, text, and streams of server-sent events. Knows nothing of the page.

import { forget, keep, recall } from "./store.js";

const TIMEOUT_MS = 8000;

export class BoxError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.name = "BoxError";
    this.status = status; // 0: no answer at all
  }
}

export const events = new EventTarget(); // "refused": a key is missing or wrong; detail is the server's message

export function getKey() {
  return recall("key", "");
}

export function setKey(key) {
  if (key) keep("key", key);
  else forget("key");
}

export function urlOf(path) {
  // Relative to the page, so that a prefix under which a proxy publishes the box is kept.
  return new URL(path.replace(/^\//, ""), document.baseURI).href;
}

export async function getJson(path) {
  const response = await send(path, { signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (!response.ok) throw await readError(response);
  return response.json();
}

export async function getText(path) {
  const response = await send(path, { signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (!response.ok) throw await readError(response);
  return response.text();
}

// How the start goes: the report has the same form whether the box is ready (200) or not (503).
export async function getReport() {
  const response = await send("/startupz", { signal: AbortSignal.timeout(TIMEOUT_MS) });
  const report = await response.json().catch(() => ({}));
  if (Array.isArray(report.models)) return report;
  throw new BoxError(report.error?.message ?? `The box answers HTTP ${response.status}.`, response.status);
}

// Yields each event's JSON. Throws BoxError for an error before or in the stream, AbortError when `signal` says so.
export async function* stream(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const response = await send(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) throw await readError(response);
  for await (const data of readEvents(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new BoxError(event.error.message, 200);
    yield event;
  }
  throw new BoxError("The connection broke before the answer was complete.");
}

async function send(path, options) {
  const headers = new Headers(options.headers);
  if (getKey()) headers.set("Authorization", `Bearer ${getKey()}`);
  let response;
  try {
    response = await fetch(urlOf(path), { cache: "no-store", ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new BoxError("The box cannot be reached.");
  }
  if (response.status === 401) {
    const error = await readError(response.clone());
    events.dispatchEvent(new CustomEvent("refused", { detail: error.message }));
  }
  return response;
}

async function readError(response) {
  const body = await response.json().catch(() => ({}));
  return new BoxError(body.error?.message ?? `The box answers HTTP ${response.status}.`, response.status);
}

async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await read(reader);
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new BoxError("The connection broke before the answer was complete.");
  }
}
