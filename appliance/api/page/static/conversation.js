// What was said, as it is kept over a reload of the tab, and as the API wants it.

import { keep, recall } from "./store.js";

export class Conversation {
  constructor() {
    this.turns = recall("conversation", []); // {role, content, reasoning, facts, error}
  }

  addUser(content) {
    this._add({ role: "user", content });
  }

  addAssistant() {
    return this._add({ role: "assistant", content: "", reasoning: "" });
  }

  removeLast() {
    this.turns.pop();
  }

  clear() {
    this.turns = [];
    this.keep();
  }

  keep() {
    keep("conversation", this.turns);
  }

  // For the API; `draft` is what would be said next. Answers that failed without a word are left out.
  messages(system, draft = "") {
    const messages = system ? [{ role: "system", content: system }] : [];
    const turns = draft ? [...this.turns, { role: "user", content: draft }] : this.turns;
    for (const { role, content } of turns) {
      const last = messages.at(-1);
      if (!content) continue;
      // Many templates insist that user and assistant take turns.
      if (last?.role === role) last.content += `\n\n${content}`;
      else messages.push({ role, content });
    }
    return messages;
  }

  _add(turn) {
    this.turns.push(turn);
    return turn;
  }
}
