// The chat: sends what is written, shows the answer as it comes, stops, tries again, gives requests away.

import { Answer } from "./answer.js";
import { Conversation } from "./conversation.js";
import { asCurl, asPython } from "./snippets.js";
import { copyText } from "./clipboard.js";
import { TurnView } from "./turns.js";

const DRAW_EVERY_MS = 50;
const NEAR_END_PX = 60;
const $ = (id) => document.getElementById(id);

export class Chat {
  constructor(settings, status) {
    this._settings = settings;
    this._status = status;
    this._conversation = new Conversation();
    this._views = [];
    this._answer = null;
    this._listen();
    this._drawAll();
  }

  // Whether there is anything to send to.
  setReady(isReady) {
    this._isReady = isReady;
    this._showState();
    // The state may become known only after the silence was noticed.
    if (this._answer?.isSilent) this._showSilence(this._views.at(-1));
  }

  showName(name) {
    if (name === this._name) return;
    this._name = name;
    if (!this._answer) this._drawAll();
  }

  _listen() {
    $("composer").addEventListener("submit", (event) => (event.preventDefault(), this._send()));
    $("prompt").addEventListener("keydown", (event) => this._onKey(event));
    $("prompt").addEventListener("input", () => (this._grow(), this._showState()));
    $("stop-button").addEventListener("click", () => this._stop());
    $("new-button").addEventListener("click", () => this._startAnew());
    $("curl-button").addEventListener("click", () => this._give(asCurl, "curl command"));
    $("python-button").addEventListener("click", () => this._give(asPython, "Python program"));
    $("examples").addEventListener("click", (event) => event.target.matches("button") && this._send(event.target.textContent));
    $("turns").addEventListener("click", (event) => this._onTurnClick(event.target));
    // Where the end was in view it stays there, whatever changes the height: a phone's keyboard, a longer message.
    $("log").addEventListener("scroll", () => (this._wasAtEnd = this._isAtEnd()), { passive: true });
    new ResizeObserver(() => this._wasAtEnd && this._scroll()).observe($("log"));
    window.addEventListener("pagehide", () => this._conversation.keep());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this._stop());
  }

  _onKey(event) {
    // While an input method composes a character, Enter belongs to it.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this._send();
  }

  _send(text = $("prompt").value.trim()) {
    if (!text || this._answer || !this._isReady) return;
    const problem = this._settings.problem;
    if (problem) return this._notice(problem);
    this._conversation.addUser(text);
    $("prompt").value = "";
    this._grow();
    this._respond();
  }

  async _respond() {
    const body = this._body();
    const turn = this._conversation.addAssistant();
    this._drawAll();
    const view = this._views.at(-1);
    view.allowRetry(false);
    const answer = (this._answer = new Answer(turn, body));
    answer.onText = () => this._drawSoon(view);
    answer.onSilence = () => this._showSilence(view);
    this._showState();
    view.draw({ isWriting: true });
    await answer.run();
    this._finish(turn, view, answer);
  }

  _showSilence(view) {
    view.wait(this._status.isReady ? "Waiting for the next token…" : "The engine is away. The answer goes on when it is back.");
  }

  _finish(turn, view, answer) {
    if (this._answer !== answer) return; // the chat was cleared meanwhile
    this._answer = null;
    cancelAnimationFrame(this._frame);
    clearTimeout(this._drawTimer);
    this._drawTimer = null;
    const isAtEnd = this._isAtEnd();
    view.wait("");
    view.draw();
    view.allowRetry(true);
    this._conversation.keep();
    this._showState();
    if (isAtEnd) this._scroll();
    $("announcer").textContent = turn.error ? "" : turn.content;
    if (matchMedia("(pointer: fine)").matches) $("prompt").focus();
  }

  _stop() {
    this._answer?.stop();
  }

  _retry() {
    if (this._answer || !this._isReady) return;
    if (this._conversation.turns.at(-1)?.role === "assistant") this._conversation.removeLast();
    this._respond();
  }

  _startAnew() {
    const answer = this._answer;
    this._answer = null;
    answer?.stop();
    this._conversation.clear();
    this._drawAll();
    this._showState();
    $("prompt").focus();
  }

  _body(draft = "") {
    const { model, system, sampling } = this._settings;
    const messages = this._conversation.messages(system, draft);
    return { model, messages, ...sampling, stream: true, stream_options: { include_usage: true } };
  }

  async _give(write, what) {
    const isEmpty = this._conversation.turns.length === 0;
    const draft = $("prompt").value.trim() || (isEmpty ? "Hello!" : "");
    const body = this._body(draft);
    // The request that led to the last answer, unless something new is written.
    if (!draft && body.messages.at(-1)?.role === "assistant") body.messages.pop();
    const isCopied = await copyText(write(body));
    this._notice(isCopied ? `Copied as a ${what}` : "The browser does not let this page copy.");
  }

  _onTurnClick(target) {
    if (target.matches("[data-retry]")) this._retry();
    if (target.dataset.copy === "answer") {
      const index = this._views.findIndex((view) => view.element.contains(target));
      this._copy(target, this._conversation.turns[index].content);
    }
    if (target.dataset.copy === "code") this._copy(target, target.closest("figure").querySelector("code").textContent);
  }

  async _copy(button, text) {
    const isCopied = await copyText(text);
    button.textContent = isCopied ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }

  _notice(text) {
    const notice = $("notice");
    notice.textContent = text;
    notice.hidden = false;
    clearTimeout(this._noticeTimer);
    this._noticeTimer = setTimeout(() => (notice.hidden = true), 4000);
  }

  _drawAll() {
    const turns = this._conversation.turns;
    $("turns").replaceChildren();
    this._views = turns.map((turn) => new TurnView($("turns"), turn, this._name ?? "Model"));
    this._views.forEach((view, i) => view.allowRetry(i === turns.length - 1));
    $("empty").hidden = turns.length > 0;
    this._scroll();
  }

  // Not for every token: drawing would take longer than the tokens do.
  _drawSoon(view) {
    view.wait("");
    if (this._drawTimer) return;
    this._drawTimer = setTimeout(() => {
      this._drawTimer = null;
      this._frame = requestAnimationFrame(() => {
        const isAtEnd = this._isAtEnd();
        view.draw({ isWriting: true });
        if (isAtEnd) this._scroll();
      });
    }, DRAW_EVERY_MS);
  }

  _isAtEnd() {
    const log = $("log");
    return log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END_PX;
  }

  _scroll() {
    $("log").scrollTop = $("log").scrollHeight;
  }

  _grow() {
    const prompt = $("prompt");
    prompt.style.height = "auto";
    prompt.style.height = `${Math.min(prompt.scrollHeight, 220)}px`;
  }

  _showState() {
    const isBusy = this._answer !== null;
    $("send-button").hidden = isBusy;
    $("stop-button").hidden = !isBusy;
    $("send-button").disabled = !this._isReady || !$("prompt").value.trim();
    $("new-button").disabled = this._conversation.turns.length === 0;
    for (const button of $("examples").querySelectorAll("button")) button.disabled = !this._isReady;
  }
}
