// How the pipelines are doing, on the overview: reads on in the stream that they publish their
// progress to, whenever it is asked to look.

import { h, replace } from "./dom.js"
import { count, plural, rate, seconds } from "./format.js"
import { Chart } from "./charts.js"
import { section, table } from "./details.js"
import { parseChange, readState, snapshotOffset } from "./state-fold.js"
import { textOf } from "./messages.js"
import { readFrame } from "./stream-reader.js"
import { Problem } from "./server.js"

const STREAM = "/pipelines/progress"
const TYPE = "pipeline"
const SILENT_SECS = 30 // a pipeline says something every five seconds
const CHARTS_MAX = 12

export class Pipelines {
  #next = null // the offset to read on from
  #known = new Map() // name -> { progress, heardAt }
  #charts = new Map()

  /** `exists(name)` tells whether there is a stream of that name. */
  constructor(server, exists) {
    this.server = server
    this.exists = exists
    this.stream = server.stream(STREAM)
    this.table = h("div", {})
    this.grid = h("div", { class: "charts" })
    this.element = h("div", { class: "pipelines", hidden: true }, this.table, this.grid)
  }

  async look() {
    if (!this.exists(STREAM)) return
    try {
      await this.#read()
    } catch (error) {
      if (!(error instanceof Problem)) throw error
      this.#next = null // trimmed, or another stream: begin anew with the next look
      return
    }
    this.#show()
  }

  async #read() {
    this.#next ??= await this.#begin()
    for (let upToDate = false; !upToDate; ) {
      const frame = await readFrame(this.server, this.stream, this.#next)
      for (const message of frame.messages) this.#take(parseChange(textOf(message)))
      this.#next = frame.next
      upToDate = frame.upToDate
    }
  }

  /** What stood before the history that is kept; the offset behind it. */
  async #begin() {
    const offset = await snapshotOffset(this.server, this.stream)
    if (offset === null) return "-1"
    const collections = await readState(this.server, this.stream, offset)
    for (const [key, value] of Object.entries(collections?.[TYPE] ?? {})) this.#take({ type: TYPE, key, value })
    return offset
  }

  #take(change) {
    if (change?.type !== TYPE || typeof change.value?.updated_at !== "number") return
    const { key, value } = change
    this.#known.set(key, { progress: value, heardAt: value.updated_at * 1000 })
    if (!this.#charts.has(key) && this.#charts.size < CHARTS_MAX) {
      const chart = new Chart(`Lag of ${key}`, ["behind"], seconds)
      this.#charts.set(key, chart)
      this.grid.append(chart.element)
    }
    this.#charts.get(key)?.push(value.updated_at * 1000, [Number(value.lag_secs) || 0])
  }

  #show() {
    this.element.hidden = this.#known.size === 0
    const now = Date.now()
    const rows = [...this.#known].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, known]) => row(name, known, now))
    replace(this.table, section("Pipelines", null, table(["pipeline", "state", "lag", "behind", "rows", "rows/s", "last report"], rows)))
  }
}

function row(name, { progress, heardAt }, now) {
  const age = Math.max(0, now - heardAt) / 1000
  const isSilent = ["starting", "running", "retrying"].includes(progress.state) && age > SILENT_SECS
  const state = isSilent ? "silent" : String(progress.state)
  const said = progress.last_error ? h("span", { title: progress.last_error }, state) : state
  return [
    name,
    h("span", { class: `state-word ${isSilent || ["failed", "retrying"].includes(progress.state) ? "wrong" : ""}` }, said),
    seconds(Number(progress.lag_secs)),
    progress.lag_rows === null ? "–" : plural(Number(progress.lag_rows), "message"),
    count(Number(progress.rows)),
    rate(Number(progress.rows_per_sec)),
    `${count(Math.round(age))} s ago`,
  ]
}
