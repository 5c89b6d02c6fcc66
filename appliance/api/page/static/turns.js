// Draws the conversation: a bubble for each thing said, with its reasoning folded, its figures and its error.

import { seconds } from "./charts.js";
import { renderMarkdown } from "./markdown.js";

export class TurnView {
  constructor(parent, turn, name) {
    this._turn = turn;
    this._isAnswer = turn.role === "assistant";
    this.element = make("article", `turn ${turn.role}`, parent);
    this.element.setAttribute("aria-label", this._isAnswer ? `${name} answered` : "You said");
    if (this._isAnswer) this._buildAnswer(name);
    else make("p", "said", this.element).textContent = turn.content;
    this.draw();
  }

  // What is said instead of text while nothing comes; "" for nothing.
  wait(text) {
    this._waiting.textContent = text;
    this._waiting.hidden = !text;
  }

  draw({ isWriting = false } = {}) {
    if (!this._isAnswer) return;
    const { content, reasoning, facts, error } = this._turn;
    this.element.classList.toggle("writing", isWriting);
    this._reasoning.hidden = !reasoning;
    this._summary.textContent = isWriting && !content ? "Thinking…" : "Reasoning";
    this._thought.textContent = reasoning.trim();
    renderMarkdown(this._text, content);
    this._error.textContent = error ?? "";
    this._error.hidden = !error;
    this._facts.textContent = facts ? describeFacts(facts) : "";
    this._copy.hidden = isWriting || !content;
  }

  allowRetry(isAllowed) {
    if (this._isAnswer) this._retry.hidden = !isAllowed;
  }

  _buildAnswer(name) {
    make("p", "who", this.element).textContent = name;
    this._reasoning = make("details", "reasoning", this.element);
    this._summary = make("summary", "", this._reasoning);
    this._thought = make("div", "thought", this._reasoning);
    this._text = make("div", "text", this.element);
    this._waiting = make("p", "waiting", this.element);
    this._waiting.hidden = true;
    this._error = make("p", "error", this.element);
    this._error.setAttribute("role", "alert");
    this._foot = make("footer", "foot", this.element);
    this._facts = make("span", "figures", this._foot);
    this._copy = makeButton("Copy", "answer", this._foot);
    this._retry = makeButton("Try again", "retry", this._foot);
  }
}

function describeFacts({ tokens, tokensPerS, firstTokenS, finish }) {
  const words = [];
  if (tokens) words.push(`${tokens} token${tokens === 1 ? "" : "s"}`);
  if (tokensPerS) words.push(`${tokensPerS.toFixed(1)} tokens/s`);
  if (firstTokenS !== undefined) words.push(`first token after ${seconds(firstTokenS)}`);
  if (finish === "length") words.push("cut at the limit of tokens");
  if (finish === "stopped") words.push("stopped");
  return words.join(" · ");
}

function make(name, className, parent) {
  const element = document.createElement(name);
  if (className) element.className = className;
  parent.append(element);
  return element;
}

function makeButton(text, copies, parent) {
  const button = make("button", "quiet", parent);
  button.type = "button";
  button.textContent = text;
  if (copies === "retry") button.dataset.retry = "";
  else button.dataset.copy = copies;
  return button;
}
