// Puts the page together: status, key, model, chat and side column.

import { events, getJson, getKey, setKey } from "./api.js";
import { Chat } from "./chat.js";
import { ChatSettings } from "./settings.js";
import { Side } from "./side.js";
import { describePhase, StatusWatch } from "./status.js";

const $ = (id) => document.getElementById(id);

const START_TITLES = { away: "The box cannot be reached", loading: "Starting up" };

class Page {
  constructor() {
    this._status = new StatusWatch();
    this._settings = new ChatSettings($("settings"), $("settings-button"));
    this._chat = new Chat(this._settings, this._status);
    this._side = new Side();
    this._cards = null;
    this._isRefused = false;
    this._listen();
    this._status.poll();
  }

  _listen() {
    this._status.addEventListener("status", ({ detail }) => this._onStatus(detail));
    events.addEventListener("refused", ({ detail }) => this._onRefused(detail));
    $("key-button").addEventListener("click", () => this._toggleKey($("key-panel").hidden));
    $("key-panel").addEventListener("submit", (event) => (event.preventDefault(), this._useKey($("key").value.trim())));
    $("key-forget").addEventListener("click", () => this._useKey(""));
    for (const button of document.querySelectorAll(".tabs button")) button.addEventListener("click", () => this._show(button.dataset.view));
  }

  async _onStatus(status) {
    $("status").dataset.state = status.state;
    if ($("status-text").textContent !== status.text) $("status-text").textContent = status.text;
    document.title = status.state === "ready" ? "Breadbox" : `${status.text} – Breadbox`;
    this._showStart(status);
    // After a restart the box may serve something else.
    if (status.state === "ready" && (status.before !== "ready" || !this._cards)) await this._loadModels();
    this._showReadiness();
  }

  _showReadiness() {
    this._chat.setReady(this._status.isReady && this._cards !== null && !this._isRefused);
  }

  async _loadModels() {
    if (this._isRefused) return;
    try {
      this._cards = (await getJson("/v1/models")).data;
    } catch {
      return; // the next look at the status tries again
    }
    this._settings.showModels(this._cards.map(({ id }) => id), () => this._showModel());
    this._showModel();
  }

  _showModel() {
    const name = this._settings.model;
    this._chat.showName(name);
    $("welcome-model").textContent = `${name} answers. Nothing leaves this box.`;
    this._side.showModel(this._cards, name);
  }

  _showStart({ state, text, models }) {
    const isReady = state === "ready";
    $("welcome").hidden = !isReady;
    $("start").hidden = isReady || state === "connecting";
    $("start-title").textContent = START_TITLES[state] ?? text;
    $("starts").replaceChildren(...models.map(drawStart));
    if (!models.length && !isReady) $("starts").replaceChildren(make("li", "hint", "This page goes on as soon as it answers."));
  }

  _onRefused(message) {
    this._isRefused = true;
    this._showReadiness();
    $("key-problem").textContent = getKey() ? capitalize(message) : "";
    $("welcome-model").textContent = "Enter the key to begin.";
    $("key-hint").textContent = "This box asks for a key. It is kept in this tab until it is closed.";
    if ($("key-panel").hidden) this._toggleKey(true);
  }

  async _useKey(key) {
    setKey(key);
    $("key").value = "";
    $("key-problem").textContent = "";
    $("key-forget").hidden = !key;
    this._isRefused = false;
    this._cards = null;
    await this._loadModels();
    this._showReadiness();
    if (this._cards) this._toggleKey(false);
  }

  _toggleKey(isOpen) {
    $("key-panel").hidden = !isOpen;
    $("key-button").setAttribute("aria-expanded", String(isOpen));
    $("key-forget").hidden = !getKey();
    (isOpen ? $("key") : $("prompt")).focus();
  }

  _show(view) {
    document.body.dataset.view = view;
    for (const button of document.querySelectorAll(".tabs button")) button.setAttribute("aria-pressed", String(button.dataset.view === view));
  }
}

function drawStart(model) {
  const item = document.createElement("li");
  const label = make("span", "start-label", model.model);
  const phase = make("span", "start-phase", model.is_ready ? "Ready" : describePhase(model));
  const bar = Object.assign(make("progress", "", ""), { max: 100 });
  bar.hidden = model.phase === "failed";
  if (model.is_ready) bar.value = 100;
  else if (model.percent > 0) bar.value = model.percent;
  bar.setAttribute("aria-label", `Start of ${model.model}`);
  item.append(label, phase, bar);
  const seconds = Object.values(model.seconds ?? {}).reduce((sum, value) => sum + value, 0);
  if (seconds >= 1) phase.textContent += ` · ${Math.round(seconds)} s`;
  if (model.error && model.phase !== "away") item.append(make("p", "error", model.error));
  return item;
}

function make(name, className, textContent) {
  return Object.assign(document.createElement(name), { className, textContent });
}

function capitalize(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

new Page();
