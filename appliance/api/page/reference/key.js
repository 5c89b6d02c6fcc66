// The API's description, and the key where the box wants one: kept for this tab, as the page for people does.

import { forget, keep, recall } from "./store.js";

export function authorization() {
  const key = recall("key", "");
  return key ? { Authorization: `Bearer ${key}` } : {};
}

// Asks for the key, in `place`, until the box takes it.
export async function loadDescription(place) {
  for (;;) {
    const response = await fetch("openapi.json", { headers: authorization() });
    if (response.ok) return response.json();
    const message = (await response.json().catch(() => ({}))).error?.message ?? `HTTP ${response.status}`;
    if (![401, 403].includes(response.status)) {
      place.textContent = message;
      throw new Error(message);
    }
    await askForKey(place, recall("key", "") ? message : "");
  }
}

function askForKey(place, problem) {
  forget("key");
  const form = document.createElement("form");
  const label = document.createElement("label");
  const input = document.createElement("input");
  const button = document.createElement("button");
  const alert = document.createElement("p");
  label.textContent = "API key ";
  input.type = "password";
  input.autocomplete = "off";
  button.textContent = "Use key";
  alert.textContent = problem;
  alert.setAttribute("role", "alert");
  form.style = "margin: 2rem; font: 1rem sans-serif";
  label.append(input, " ");
  form.append(label, button, alert);
  place.replaceChildren(form);
  input.focus();
  return new Promise((resolve) => {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      // A header can hold no other characters, and no key has them.
      keep("key", input.value.replace(/[^\x21-\x7e]/g, ""));
      place.replaceChildren();
      resolve();
    });
  });
}
