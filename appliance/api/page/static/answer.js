// One answer as it streams in: gathers text and reasoning, and takes the times.

import { BoxError, stream } from "./api.js";

const SILENCE_MS = 2500;

export class Answer {
  constructor(turn, body) {
    this._turn = turn;
    this._body = body;
    this._controller = new AbortController();
    this._count = 0;
    this.onText = () => {};
    this.onSilence = () => {}; // nothing came for a while
    this.isSilent = false;
  }

  stop() {
    this._controller.abort();
  }

  // Never throws: what goes wrong is the turn's `error`.
  async run() {
    this._sentAt = performance.now();
    this._listen();
    try {
      for await (const event of stream("/v1/chat/completions", this._body, this._controller.signal)) this._take(event);
    } catch (error) {
      this._fail(error);
    } finally {
      clearTimeout(this._timer);
      this._turn.facts = this._facts();
    }
  }

  _take(event) {
    this._listen();
    if (event.usage) this._usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    this._finish = choice.finish_reason ?? this._finish;
    const { content, reasoning, reasoning_content } = choice.delta ?? {};
    const thought = reasoning ?? reasoning_content;
    if (!content && !thought) return;
    this._lastAt = performance.now();
    this._firstAt ??= this._lastAt;
    this._count += 1;
    this._turn.content += content ?? "";
    this._turn.reasoning += thought ?? "";
    this._turn.facts = this._facts();
    this.onText();
  }

  _fail(error) {
    if (error.name === "AbortError") this._finish = "stopped";
    else if (error instanceof BoxError) this._turn.error = error.message;
    else {
      this._turn.error = "The answer could not be read.";
      console.error(error);
    }
  }

  _listen() {
    clearTimeout(this._timer);
    this.isSilent = false;
    this._timer = setTimeout(() => this._noticeSilence(), SILENCE_MS);
  }

  _noticeSilence() {
    this.isSilent = true;
    this.onSilence();
  }

  _facts() {
    if (this._firstAt === undefined) return this._finish === "stopped" ? { finish: "stopped" } : null;
    const tokens = this._usage?.completion_tokens ?? this._count;
    const writingS = (this._lastAt - this._firstAt) / 1000;
    return {
      tokens,
      tokensPerS: tokens > 1 && writingS > 0 ? (tokens - 1) / writingS : null,
      firstTokenS: (this._firstAt - this._sentAt) / 1000,
      finish: this._finish,
    };
  }
}
