// The side column: the model's card, and charts of the load from /metrics.

import { BoxError, getKey, getText } from "./api.js";
import { Chart, CHARTS, findSpan } from "./charts.js";
import { History, labelsOf, parseMetrics } from "./metrics.js";

const EVERY_MS = 2000;
const INFOS = ["vllm:cache_config_info", "breadbox:build_info"];
const $ = (id) => document.getElementById(id);

export class Side {
  constructor() {
    this._charts = CHARTS.map((spec) => new Chart($("charts"), spec));
    this._history = null;
    this._timer = null;
    document.addEventListener("visibilitychange", () => document.hidden || this.poll());
  }

  // `cards`: of /v1/models; `name`: the chosen one.
  showModel(cards, name) {
    const card = cards.find(({ id }) => id === name);
    this._card = card;
    this._aliases = cards.filter(({ id, root }) => root === card.root && id !== name).map(({ id }) => id);
    $("model-name").textContent = name;
    if (this._history?.model !== card.root) {
      this._history = new History(card.root);
      this._labels = {};
    }
    this._showFacts(new Map());
    this._showLinks();
    this.poll();
  }

  async _showLinks() {
    $("links").hidden = false;
    $("metrics-link").hidden = Boolean(getKey()); // a browser that follows a link sends no key
    await getText("/docs").catch(() => ($("docs-link").hidden = true));
  }

  async poll() {
    clearTimeout(this._timer);
    if (!this._history) return;
    const goesOn = await this._look();
    clearTimeout(this._timer);
    if (goesOn && !document.hidden) this._timer = setTimeout(() => this.poll(), EVERY_MS);
  }

  async _look() {
    const history = this._history;
    try {
      const families = parseMetrics(await getText("/metrics"));
      history.add(families, Date.now() / 1000);
      this._showFacts(families);
      this._problem("");
    } catch (error) {
      if (!(error instanceof BoxError)) console.error(error);
      history.addGap(Date.now() / 1000);
      if (error.status === 401) return false;
      if (error.status === 404) {
        this._problem("The metrics are not served on this port.");
        $("charts").hidden = $("metrics-link").hidden = true;
        return false;
      }
    }
    const now = Date.now() / 1000;
    this._charts.forEach((chart) => chart.show(history.points, now));
    const minutes = findSpan(history.points, now) / 60;
    $("charts-span").textContent = minutes === 1 ? "last minute" : `last ${minutes} minutes`;
    return true;
  }

  _problem(text) {
    $("charts-problem").textContent = text;
    $("charts-problem").hidden = !text;
  }

  _showFacts(families) {
    // What is known stays when the engine is away for a while.
    for (const name of INFOS) Object.assign(this._labels, labelsOf(families, name, this._card.root));
    const { kv_cache_size_tokens: size, cache_dtype: type, version } = this._labels;
    const rows = [["Context", `${count(this._card.max_model_len)} tokens`]];
    if (size) rows.push(["KV cache", `${count(size)} tokens`]);
    if (type) rows.push(["Precision", type]);
    if (this._aliases.length) rows.push(["Also called", this._aliases.join(", ")]);
    if (version) rows.push(["Breadbox", version]);
    $("model-facts").replaceChildren(...rows.flatMap(([term, text]) => [make("dt", term), make("dd", text)]));
  }
}

function count(value) {
  return Number(value).toLocaleString("en");
}

function make(name, text) {
  return Object.assign(document.createElement(name), { textContent: text });
}
