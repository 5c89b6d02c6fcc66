// Asks again and again how the box is, and tells listeners: ready, loading, restarting, draining, starting or away.

import { getReport } from "./api.js";

const READY_EVERY_MS = 3000;
const WAITING_EVERY_MS = 700;
const PHASES = { away: "Waiting for the engine", starting: "Starting the engine" };

// The proxy is there, the API not.
const STARTING = { state: "loading", text: "The API is starting", models: [] };
const RESTARTING = { state: "restarting", text: "The API is restarting", models: [] };

export class StatusWatch extends EventTarget {
  constructor() {
    super();
    this.current = { state: "connecting", text: "Connecting…", models: [] };
    this._wasReady = false;
    this._timer = null;
    document.addEventListener("visibilitychange", () => document.hidden || this.poll());
  }

  get isReady() {
    return this.current.state === "ready";
  }

  async poll() {
    clearTimeout(this._timer);
    const next = await this._look();
    this._wasReady ||= next.state === "ready";
    const before = this.current;
    this.current = next;
    this.dispatchEvent(new CustomEvent("status", { detail: { ...next, before: before.state } }));
    clearTimeout(this._timer);
    if (!document.hidden) this._timer = setTimeout(() => this.poll(), this.isReady ? READY_EVERY_MS : WAITING_EVERY_MS);
  }

  async _look() {
    try {
      return this._describe(await getReport());
    } catch (error) {
      if (error.status >= 500) return this._wasReady ? RESTARTING : STARTING;
      return { state: "away", text: "Not reachable", models: [] };
    }
  }

  _describe(report) {
    const models = report.models;
    if (report.status === "ready") return { state: "ready", text: "Ready", models };
    if (report.status === "draining") return { state: "draining", text: "Shutting down", models };
    const failed = models.find((model) => model.error && model.phase !== "away");
    if (failed) return { state: "failed", text: "The engine has failed", models };
    const slowest = models.filter((model) => !model.is_ready).sort((a, b) => a.percent - b.percent)[0];
    const text = this._wasReady ? "The engine is restarting" : describePhase(slowest);
    return { state: this._wasReady ? "restarting" : "loading", text, models };
  }
}

export function describePhase(model) {
  if (!model) return "Starting";
  const phase = PHASES[model.phase] ?? model.phase.replaceAll("_", " ").replace(/^./, (letter) => letter.toUpperCase());
  return model.percent > 0 && model.phase !== "failed" ? `${phase} ${Math.round(model.percent)} %` : phase;
}
