// Keeps things for as long as the tab lives; where the browser forbids that, until the page is left.

const PREFIX = "breadbox.";
const memory = new Map();

export function keep(name, value) {
  memory.set(name, value);
  try {
    sessionStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // Forbidden, or too much: it stays in memory.
  }
}

export function recall(name, fallback) {
  if (memory.has(name)) return memory.get(name);
  try {
    return JSON.parse(sessionStorage.getItem(PREFIX + name)) ?? fallback;
  } catch {
    return fallback;
  }
}

export function forget(name) {
  memory.delete(name);
  try {
    sessionStorage.removeItem(PREFIX + name);
  } catch {
    // Then nothing was kept there.
  }
}
