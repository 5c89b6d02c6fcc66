// The form with the model, the system prompt and the sampling; kept over a reload of the tab.

import { keep, recall } from "./store.js";

const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "repetition_penalty", "seed"];

export class ChatSettings {
  constructor(form, button) {
    this._form = form;
    this._button = button;
    button.addEventListener("click", () => this.toggle());
    form.querySelector("#settings-close").addEventListener("click", () => this.toggle(false));
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => this._keep());
    form.addEventListener("reset", () => setTimeout(() => this._keep()));
    form.addEventListener("keydown", (event) => this._onKey(event));
    this._restore();
  }

  _onKey(event) {
    if (event.key !== "Escape") return;
    // Here it closes the form; elsewhere it stops the answer.
    event.stopPropagation();
    this.toggle(false);
  }

  toggle(isOpen = this._form.hidden) {
    this._form.hidden = !isOpen;
    this._button.setAttribute("aria-expanded", String(isOpen));
    (isOpen ? this._form.elements.system : this._button).focus();
  }

  get model() {
    return this._form.elements.model.value;
  }

  get system() {
    return this._form.elements.system.value.trim();
  }

  // Fields of the request for what is filled in; the rest is the model's default.
  get sampling() {
    const filled = NUMBERS.filter((name) => this._form.elements[name].value !== "");
    return Object.fromEntries(filled.map((name) => [name, this._form.elements[name].valueAsNumber]));
  }

  // The name of the first field whose value is out of range, or null.
  get problem() {
    const field = NUMBERS.map((name) => this._form.elements[name]).find((element) => !element.validity.valid);
    return field ? `${field.labels[0].textContent}: ${field.validationMessage}` : null;
  }

  showModels(names, onChange) {
    const select = this._form.elements.model;
    const chosen = select.value || this._kept.model;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    if (names.includes(chosen)) select.value = chosen;
    this._form.querySelector("#model-field").hidden = names.length < 2;
    select.onchange = onChange;
  }

  _keep() {
    const values = Object.fromEntries([...this._form.elements].filter(({ name }) => name).map(({ name, value }) => [name, value]));
    keep("settings", values);
    this._mark(values);
  }

  _restore() {
    this._kept = recall("settings", {});
    for (const name of ["system", ...NUMBERS]) this._form.elements[name].value = this._kept[name] ?? "";
    this._mark(this._kept);
  }

  _mark(values) {
    this._button.classList.toggle("changed", ["system", ...NUMBERS].some((name) => values[name]));
  }
}
