// Charts that draw themselves: the last minutes of a few numbers, and small sparklines.

import { h, replace, svg } from "./dom.js"
import { bytes, clock } from "./format.js"

const SPAN_MS = 5 * 60 * 1000
const SPAN_MS_MIN = 30 * 1000 // a chart that has just begun is not a dot at its edge
const HEIGHT = 106
const LEFT = 2
const TOP = 8
const AXIS = 16 // what the times below the plot take
const TICK_PX_MIN = 70
const TICK_SECS = [5, 10, 15, 30, 60, 120, 300]

/** A chart of one or more series over the last five minutes. */
export class Chart {
  #points = [] // [ms, value per series]
  #width = 0
  #hover = null
  #scheduled = null

  /** `series` are names, `format` writes a value. */
  constructor(title, series, format, note = "") {
    this.title = title
    this.series = series
    this.format = format
    this.figure = h("div", { class: "plot" })
    this.now = h("div", { class: "readout" })
    this.element = h(
      "section",
      { class: "chart", "aria-label": title },
      h("header", {}, h("h2", { title: note || title }, title), this.now),
      this.figure,
    )
    this.figure.addEventListener("pointermove", (event) => this.#point(event))
    this.figure.addEventListener("pointerleave", () => this.#point(null))
    new ResizeObserver(([entry]) => {
      this.#width = entry.contentRect.width
      this.draw()
    }).observe(this.figure)
  }

  push(ms, values) {
    this.#points.push([ms, values])
    while (this.#points.length && this.#points[0][0] < ms - SPAN_MS - 5000) this.#points.shift()
    this.#schedule()
  }

  /** Once per frame of the screen, however many points come. */
  #schedule() {
    this.#scheduled ??= requestAnimationFrame(() => {
      this.#scheduled = null
      this.draw()
    })
  }

  clear() {
    this.#points = []
    this.draw()
  }

  #point(event) {
    this.#hover = event === null ? null : event.clientX - this.figure.getBoundingClientRect().left
    this.draw()
  }

  draw() {
    const width = this.#width
    if (!width) return
    const points = this.#points
    const end = points.length ? points[points.length - 1][0] : 0
    const peak = ceiling(Math.max(0, ...points.flatMap(([, values]) => values)), this.format === bytes)
    const span = points.length ? Math.min(SPAN_MS, Math.max(SPAN_MS_MIN, end - points[0][0])) : SPAN_MS
    const x = (ms) => LEFT + ((ms - (end - span)) / span) * (width - LEFT - 6)
    const y = (value) => TOP + (1 - value / peak) * (HEIGHT - TOP - AXIS)
    const parts = [
      ...[0, 0.5, 1].map((part) =>
        svg("line", { class: "grid", x1: 0, x2: width, y1: y(peak * part), y2: y(peak * part) }),
      ),
      ...(points.length ? ticks(end - span, end, width).map((ms) => tick(ms, x(ms), width)) : []),
    ]
    this.series.forEach((_, at) => {
      const line = points.map(([ms, values], i) => `${i ? "L" : "M"}${x(ms).toFixed(1)} ${y(values[at]).toFixed(1)}`)
      if (line.length > 1 && at === 0) {
        const area = `${line.join("")}L${x(end)} ${y(0)}L${x(points[0][0])} ${y(0)}Z`
        parts.push(svg("path", { class: "area", d: area }))
      }
      parts.push(svg("path", { class: `line s${at}`, d: line.join("") }))
    })
    const chosen = this.#chosen(x)
    if (chosen && this.#hover !== null) {
      const at = x(chosen[0])
      parts.push(svg("line", { class: "cursor", x1: at, x2: at, y1: 0, y2: y(0) }))
      chosen[1].forEach((value, i) => parts.push(svg("circle", { class: `dot s${i}`, cx: at, cy: y(value), r: 3 })))
    } else if (points.length) {
      const last = points[points.length - 1]
      last[1].forEach((value, i) =>
        parts.push(svg("circle", { class: `dot s${i}`, cx: x(last[0]), cy: y(value), r: 2.5 })),
      )
    }
    parts.push(svg("text", { class: "axis", x: 0, y: y(peak) + 11 }, this.format(peak)))
    const said = this.#readout(chosen)
    replace(
      this.figure,
      svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": said }, ...parts),
    )
  }

  /** The point under the pointer, else the latest. */
  #chosen(x) {
    if (!this.#points.length) return null
    if (this.#hover === null) return this.#points[this.#points.length - 1]
    const distance = ([ms]) => Math.abs(x(ms) - this.#hover)
    return this.#points.reduce((best, point) => (distance(point) < distance(best) ? point : best))
  }

  #readout(chosen) {
    if (!chosen) {
      replace(this.now, h("span", { class: "dim" }, "no data yet"))
      return `${this.title}: no data yet`
    }
    const values = this.series.map((name, at) => [name, this.format(chosen[1][at])])
    replace(
      this.now,
      values.map(([name, value], at) =>
        h("span", { class: `value s${at}` }, h("b", {}, value), name ? h("span", { class: "unit" }, name) : null),
      ),
      this.#hover === null ? null : h("span", { class: "dim" }, clock(chosen[0])),
    )
    return `${this.title}: ${values.map(([name, value]) => `${value} ${name}`).join(", ")}`
  }
}

/** The next round number: 1, 2 or 5 times a power of ten; of bytes, a round number of their unit. */
function ceiling(value, isBytes) {
  if (value <= 0) return 1
  const unit = isBytes ? 1024 ** Math.floor(Math.log(Math.max(1, value)) / Math.log(1024)) : 1
  const power = 10 ** Math.floor(Math.log10(value / unit))
  return [1, 2, 5, 10].map((step) => step * power * unit).find((step) => step >= value * 0.999)
}

/** Round times of day between two, as many as there is room for. */
function ticks(from, until, width) {
  const secs = (until - from) / 1000
  const step = 1000 * (TICK_SECS.find((step) => (width * step) / secs >= TICK_PX_MIN) ?? TICK_SECS.at(-1))
  const first = Math.ceil(from / step) * step
  return Array.from({ length: Math.max(0, Math.floor((until - first) / step) + 1) }, (_, i) => first + i * step)
}

/** A time below the plot; none at its edges, where it would be cut off. */
function tick(ms, x, width) {
  if (x < TICK_PX_MIN / 2.6 || x > width - TICK_PX_MIN / 2.6) return null
  return svg("text", { class: "axis", x, y: HEIGHT - 3, "text-anchor": "middle" }, clock(ms))
}

const SPARK_WIDTH = 44
const SPARK_HEIGHT = 14

/** A few rates as a line without words. */
export function sparkline(values) {
  const peak = Math.max(...values, 0)
  const step = SPARK_WIDTH / Math.max(1, values.length - 1)
  const y = (value) => SPARK_HEIGHT - 1.5 - (peak ? value / peak : 0) * (SPARK_HEIGHT - 3)
  const line = values.map((value, i) => `${i ? "L" : "M"}${(i * step).toFixed(1)} ${y(value).toFixed(1)}`).join("")
  return svg(
    "svg",
    { class: peak ? "spark" : "spark flat", viewBox: `0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`, "aria-hidden": "true" },
    svg("path", { d: line }),
  )
}

/** Differences of a growing number over time: what it grew by per second. */
export class Rate {
  #last = null

  /** The rate since the last call; null for the first, and where the number went back. */
  next(ms, value) {
    const last = this.#last
    this.#last = { ms, value }
    if (last === null || value < last.value || ms <= last.ms) return null
    return ((value - last.value) * 1000) / (ms - last.ms)
  }
}
