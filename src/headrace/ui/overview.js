// The overview: what the whole server does, from its metrics, in charts that update themselves.

import { copy, h, icon, replace } from "./dom.js"
import { bytes, count, rate, seconds } from "./format.js"
import { Chart, Rate } from "./charts.js"
import { section, table } from "./details.js"
import { Pipelines } from "./pipelines.js"
import { Ticker } from "./status-poller.js"

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g

/** Prometheus text as samples: { name, labels, value }. */
export function parseMetrics(text) {
  const samples = []
  for (const line of text.split("\n")) {
    const found = LINE.exec(line)
    if (!found) continue
    const labels = Object.fromEntries([...(found[2] ?? "").matchAll(LABEL)].map(([, name, value]) => [name, value]))
    samples.push({ name: found[1], labels, value: Number(found[3]) })
  }
  return samples
}

class Scrape {
  constructor(samples) {
    this.byName = Map.groupBy(samples, (sample) => sample.name)
  }

  has(name) {
    return this.byName.has(name)
  }

  sum(name, matches = () => true) {
    return (this.byName.get(name) ?? []).filter(({ labels }) => matches(labels)).reduce((sum, { value }) => sum + value, 0)
  }

  /** Upper bounds and cumulative counts of a histogram. */
  buckets(name, matches = () => true) {
    const counts = new Map()
    for (const { labels, value } of this.byName.get(`${name}_bucket`) ?? []) {
      if (matches(labels)) counts.set(Number(labels.le.replace("+Inf", "Infinity")), (counts.get(Number(labels.le.replace("+Inf", "Infinity"))) ?? 0) + value)
    }
    return [...counts].sort(([a], [b]) => a - b)
  }
}

/** The value below which `part` of what came between two scrapes lies; 0 where nothing came. */
export function quantile(before, after, part) {
  const earlier = new Map(before)
  const grown = after.map(([bound, value]) => [bound, value - (earlier.get(bound) ?? 0)])
  const total = grown.length ? grown[grown.length - 1][1] : 0
  if (total <= 0) return 0
  let low = 0
  let below = 0
  for (const [bound, value] of grown) {
    if (value >= total * part) {
      if (!Number.isFinite(bound)) return low
      return low + ((bound - low) * (total * part - below)) / Math.max(value - below, 1e-9)
    }
    low = bound
    below = value
  }
  return low
}

const isAppend = (labels) => labels.operation === "append"
const isRead = (labels) => ["read", "long-poll", "sse"].includes(labels.operation)
const isGood = (labels) => /^[23]/.test(labels.status)

/** Each chart: its title, its series, how values are written, and what it needs of a scrape. */
const CHARTS = [
  { title: "Throughput", series: ["appends/s", "reads/s"], format: rate, rates: (s) => [s.sum("headrace_requests_total", (l) => isAppend(l) && isGood(l)), s.sum("headrace_requests_total", (l) => isRead(l) && isGood(l))] },
  { title: "Traffic", series: ["in/s", "out/s"], format: bytes, rates: (s) => [s.sum("headrace_received_bytes_total"), s.sum("headrace_sent_bytes_total")] },
  { title: "Live readers", series: ["SSE", "long-poll"], format: count, values: (s) => [s.sum("headrace_live_readers", (l) => l.mode === "sse"), s.sum("headrace_live_readers", (l) => l.mode === "long-poll")] },
  { title: "Append latency", series: ["p99", "p50"], format: seconds, histogram: "headrace_request_seconds", matches: isAppend, parts: [0.99, 0.5] },
  { title: "Event-loop lag", series: ["late"], format: seconds, values: (s) => [s.sum("headrace_event_loop_lag_seconds")], needs: "headrace_event_loop_lag_seconds" },
  { title: "Storage", series: ["payload held"], format: bytes, values: (s) => [s.sum("headrace_stored_bytes")] },
  { title: "Commit batch", series: ["changes a commit"], format: rate, mean: ["headrace_commit_changes_total", "headrace_commit_batches_total"] },
  { title: "Commit and sync", series: ["a commit"], format: seconds, mean: ["headrace_commit_seconds_total", "headrace_commit_batches_total"] },
]

export class Overview {
  #ticker
  #last = null
  #charts = new Map()

  /** `exists(name)` tells whether there is a stream of that name; `firstSteps` is what leads to one. */
  constructor(server, exists, firstSteps) {
    this.server = server
    this.shown = false
    this.pipelines = new Pipelines(server, exists)
    this.tiles = h("div", { class: "tiles" })
    this.grid = h("div", { class: "charts" })
    this.requests = h("div", {})
    this.problem = h("p", { class: "notice", role: "status", hidden: true })
    const curl = h("button", { type: "button", class: "quiet", on: { click: () => copy(server.curl("GET", server.url("/metrics")), "the command") } }, icon("terminal"), "Copy as curl")
    this.element = h(
      "section",
      { class: "overview", "aria-label": "Overview", tabindex: "0" },
      h("header", { class: "overview-head" }, h("h1", {}, "Overview"), h("p", { class: "dim" }, `Headrace ${server.settings.version} at ${server.base}`), curl),
      this.problem,
      firstSteps.element,
      this.tiles,
      this.pipelines.element,
      this.grid,
      this.requests,
    )
    this.#ticker = new Ticker(() => this.#ask())
    server.addEventListener("presence", () => this.#ticker.soon())
  }

  show(shown) {
    this.shown = shown
    if (shown) this.#ticker.soon()
  }

  async #ask() {
    if (this.server.away || (!this.shown && this.#last === null)) return
    let text
    try {
      text = await (await this.server.request("GET", "/metrics")).text()
    } catch (error) {
      this.problem.hidden = false
      replace(this.problem, `The metrics cannot be read: ${error.message}`)
      throw error
    }
    this.problem.hidden = true
    this.#take(new Scrape(parseMetrics(text)), Date.now())
    if (this.shown) await this.pipelines.look()
  }

  #take(scrape, now) {
    for (const spec of CHARTS) this.#chart(spec, scrape, now)
    this.#showTiles(scrape)
    this.#showRequests(scrape)
    this.#last = scrape
  }

  #chart(spec, scrape, now) {
    const needed = spec.histogram ? `${spec.histogram}_bucket` : spec.needs
    if (needed && !scrape.has(needed)) return
    if (spec.mean && !scrape.sum(spec.mean[1])) return // nothing is committed in memory mode
    let kept = this.#charts.get(spec)
    if (!kept) {
      kept = { chart: new Chart(spec.title, spec.series, spec.format), rates: spec.series.map(() => new Rate()), buckets: null }
      this.#charts.set(spec, kept)
      this.grid.append(kept.chart.element)
    }
    let values
    if (spec.rates) values = spec.rates(scrape).map((value, i) => kept.rates[i].next(now, value))
    else if (spec.values) values = spec.values(scrape)
    else if (spec.mean) values = this.#mean(spec, scrape)
    else {
      const buckets = scrape.buckets(spec.histogram, spec.matches)
      values = kept.buckets === null ? null : spec.parts.map((part) => quantile(kept.buckets, buckets, part))
      kept.buckets = buckets
    }
    if (values && !values.includes(null)) kept.chart.push(now, values)
  }

  /** What each of the latest ones came to; 0 where there were none. */
  #mean({ mean: [sum, number] }, scrape) {
    if (this.#last === null) return null
    const grown = (name) => scrape.sum(name) - this.#last.sum(name)
    return [grown(number) > 0 ? grown(sum) / grown(number) : 0]
  }

  #showTiles(scrape) {
    const tile = (name, value) => h("div", { class: "tile" }, h("span", { class: "dim" }, name), h("b", {}, value))
    replace(
      this.tiles,
      tile("Streams", count(Math.max(0, scrape.sum("headrace_streams") - 1))),
      tile("Buckets", count(scrape.sum("headrace_buckets"))),
      tile("Stored", bytes(scrape.sum("headrace_stored_bytes"))),
      tile("Live readers", count(scrape.sum("headrace_live_readers"))),
      tile("Subscriptions", count(scrape.sum("headrace_subscriptions"))),
      scrape.has("headrace_connections") ? tile("Connections", count(scrape.sum("headrace_connections"))) : null,
    )
  }

  #showRequests(scrape) {
    const operations = Map.groupBy(scrape.byName.get("headrace_requests_total") ?? [], ({ labels }) => labels.operation)
    const rows = [...operations].map(([operation, samples]) => {
      const total = (first) => samples.filter(({ labels }) => labels.status.startsWith(first)).reduce((sum, { value }) => sum + value, 0)
      const buckets = scrape.buckets("headrace_request_seconds", (labels) => labels.operation === operation)
      return [operation, ...["2", "3", "4", "5"].map((first) => count(total(first))), seconds(quantile([], buckets, 0.5)), seconds(quantile([], buckets, 0.99))]
    })
    rows.sort((a, b) => (a[0] < b[0] ? -1 : 1))
    replace(this.requests, section("Requests since start", null, table(["operation", "2xx", "3xx", "4xx", "5xx", "p50", "p99"], rows)))
  }
}
