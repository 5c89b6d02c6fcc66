// Reads the text of /metrics and keeps the last minutes of what the charts show.

const SPAN_S = 300;
const WINDOW_S = 60; // of the quantiles: long enough to hold some requests
const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

// name → [{labels, value}]
export function parseMetrics(text) {
  const families = new Map();
  for (const line of text.split("\n")) {
    const match = line.startsWith("#") ? null : SAMPLE.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) labels[name] = value;
    if (!families.has(match[1])) families.set(match[1], []);
    families.get(match[1]).push({ labels, value: Number(match[3].replace("+Inf", "Infinity")) });
  }
  return families;
}

// The sum over a model's samples; null where there are none (its engine is away).
export function sumOf(families, name, model) {
  const samples = (families.get(name) ?? []).filter(({ labels }) => !labels.model_name || labels.model_name === model);
  return samples.length ? samples.reduce((sum, { value }) => sum + value, 0) : null;
}

export function labelsOf(families, name, model) {
  const samples = families.get(name) ?? [];
  return samples.find(({ labels }) => !labels.model_name || labels.model_name === model)?.labels ?? {};
}

export class History {
  constructor(model) {
    this.model = model;
    this.points = []; // {time, running, waiting, kvUsage, tokensPerS, promptTokensPerS, ttft50, ttft95}
    this._scrapes = []; // raw counters, a window long
  }

  add(families, time) {
    const scrape = this._read(families, time);
    const last = this._scrapes.at(-1);
    this._scrapes.push(scrape);
    while (this._scrapes.length > 2 && this._scrapes[1].time <= time - WINDOW_S) this._scrapes.shift();
    this.points.push(this._point(scrape, last));
    while (this.points[0].time < time - SPAN_S) this.points.shift();
  }

  addGap(time) {
    this.points.push({ time });
    this._scrapes = [];
  }

  _read(families, time) {
    const of = (name) => sumOf(families, name, this.model);
    return {
      time,
      running: of("vllm:num_requests_running"),
      waiting: of("vllm:num_requests_waiting"),
      kvUsage: of("vllm:kv_cache_usage_perc"),
      tokens: of("vllm:generation_tokens_total"),
      promptTokens: of("vllm:prompt_tokens_total"),
      buckets: this._buckets(families),
    };
  }

  _buckets(families) {
    const buckets = new Map();
    for (const { labels, value } of families.get("vllm:time_to_first_token_seconds_bucket") ?? []) {
      if (labels.model_name !== this.model) continue;
      const bound = Number(labels.le.replace("+Inf", "Infinity"));
      buckets.set(bound, (buckets.get(bound) ?? 0) + value);
    }
    return [...buckets].sort(([a], [b]) => a - b);
  }

  _point(scrape, last) {
    const { time, running, waiting, kvUsage } = scrape;
    const first = this._scrapes[0];
    const counts = scrape.buckets.map(([bound, count], i) => [bound, count - (first.buckets[i]?.[1] ?? 0)]);
    return {
      time, running, waiting, kvUsage,
      tokensPerS: rate(scrape, last, "tokens"),
      promptTokensPerS: rate(scrape, last, "promptTokens"),
      ttft50: quantile(counts, 0.5),
      ttft95: quantile(counts, 0.95),
    };
  }
}

function rate(scrape, last, name) {
  if (!last || scrape[name] === null || last[name] === null) return null;
  return Math.max(0, scrape[name] - last[name]) / (scrape.time - last.time);
}

// Of cumulative counts by upper bound, as Prometheus' histogram_quantile has it; null without observations.
export function quantile(counts, share) {
  const total = counts.at(-1)?.[1] ?? 0;
  if (!(total > 0)) return null;
  const rank = share * total;
  const index = counts.findIndex(([, count]) => count >= rank);
  const [bound, count] = counts[index];
  const [lower, below] = index > 0 ? counts[index - 1] : [0, 0];
  if (bound === Infinity) return lower;
  return lower + ((bound - lower) * (rank - below)) / (count - below || 1);
}
