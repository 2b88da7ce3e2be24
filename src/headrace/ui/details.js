// The right side: what the open stream is besides its messages.

import { copy, h, icon, iconButton, replace } from "./dom.js"
import { snapshotOffset } from "./state-fold.js"
import { bytes, count, countdown, moment, plural, rate } from "./format.js"
import { Chart, Rate } from "./charts.js"
import { Forks } from "./forks.js"
import { parseOffset } from "./stream-reader.js"
import { Problem } from "./server.js"
import { snapshotSection } from "./snapshots.js"
import { Ticker } from "./status-poller.js"

const SAMPLE_MS = 1000

export class Details {
  #ticker
  #about = null
  #snapshot = null
  #clockSkewMs = 0
  #appends = new Rate()
  #sizes = new Rate()

  constructor(server, view, { back, goTo }) {
    this.server = server
    this.view = view
    this.forks = new Forks(server, goTo)
    this.stream = null
    this.charts = [
      new Chart("Appends", ["per second"], rate),
      new Chart("Bytes", ["per second"], bytes),
    ]
    this.facts = h("dl", { class: "facts" })
    this.sections = h("div", {})
    this.element = h(
      "aside",
      { class: "details", "aria-label": "Details" },
      h("header", { class: "details-head" }, iconButton("back", "Back to the stream", back, { class: "icon-button only-narrow" }), h("h2", {}, "Details")),
      h("div", { class: "details-body", tabindex: "0", role: "region", "aria-label": "Facts about this stream" }, this.facts, this.charts.map((chart) => chart.element), this.sections),
    )
    this.#ticker = new Ticker(() => this.#ask())
    view.addEventListener("tail", () => this.#showTail())
    setInterval(() => this.#tick(), SAMPLE_MS)
  }

  open(stream) {
    this.stream = stream
    this.#about = null
    this.forks.clear()
    this.#appends = new Rate()
    this.#sizes = new Rate()
    for (const chart of this.charts) chart.clear()
    replace(this.facts)
    replace(this.sections)
    if (stream) this.#ticker.soon()
  }

  async #ask() {
    const { stream, server, view } = this
    if (stream === null || server.away || view.state.problem) return
    let about
    try {
      about = await server.json(stream.inspectionPath)
    } catch (error) {
      if (error instanceof Problem) return
      throw error
    }
    const snapshot = await snapshotOffset(server, stream)
    if (stream !== this.stream) return
    this.#snapshot = snapshot
    this.#about = about
    this.#clockSkewMs = about.now_ms - Date.now()
    view.noteTail(about.tail_offset, about.earliest_offset)
    view.noteClosed(about.closed)
    if (!view.state.live) this.#sample()
    this.#showAll()
    if ((await this.forks.look(about)) && stream === this.stream) this.#showAll()
  }

  #tick() {
    if (!this.stream) return
    this.#showExpiry()
    if (this.view.state.live) this.#sample()
  }

  /** A live view knows the tail at any time. A paused one learns it from a poll, and only then:
   * a sample between two polls would show no growth, and the next one twice as much. */
  #sample() {
    const { tail } = this.view
    if (!tail || document.hidden) return
    const now = Date.now()
    const appends = this.#appends.next(now, tail.messages)
    const sizes = this.#sizes.next(now, tail.bytes)
    if (appends === null || sizes === null) return
    this.charts[0].push(now, [appends])
    this.charts[1].push(now, [sizes])
  }

  #showTail() {
    const at = this.facts.querySelector("[data-fact=tail]")
    if (at && this.view.tail) replace(at, this.#offset(this.view.tail.token))
  }

  #offset(token) {
    const { messages, bytes: size } = parseOffset(token)
    return [
      h("button", { type: "button", class: "link mono", title: `Copy ${token}`, on: { click: () => copy(token, "the offset") } }, `${count(messages)} · ${count(size)}`),
    ]
  }

  #showAll() {
    const about = this.#about
    if (!about) return
    const rows = [
      ["Content type", about.content_type],
      ["State", about.closed ? "closed" : "open"],
      ["Created", moment(about.created_at_ms)],
      ["Tail", this.#offset(about.tail_offset), "tail"],
      parseOffset(about.earliest_offset).messages ? ["Earliest kept", this.#offset(about.earliest_offset)] : null,
      ["Live readers", count(about.live_readers)],
      ["Expires", "", "expiry"],
      about.stream_seq === null ? null : ["Stream-Seq", about.stream_seq],
    ]
    replace(
      this.facts,
      rows.filter(Boolean).flatMap(([name, value, fact]) => [h("dt", {}, name), h("dd", { data: fact ? { fact } : {} }, value)]),
    )
    this.#showExpiry()
    replace(
      this.sections,
      this.stream.isBucketed ? snapshotSection(this.server, this.stream, this.#snapshot, about.tail_offset, () => this.#ticker.soon()) : null,
      this.#forks(about),
      this.#producers(about),
      this.stream.isBucketed ? null : this.#subscriptions(about),
    )
  }

  #showExpiry() {
    const at = this.facts.querySelector("[data-fact=expiry]")
    const about = this.#about
    if (!at || !about) return
    if (about.ttl_secs === null && about.expires_at_ms === null) replace(at, "never")
    else if (about.expires_at_ms === null) {
      replace(at, `${plural(about.ttl_secs, "second")} after the last live reader leaves`)
    } else {
      const left = countdown(about.expires_at_ms - (Date.now() + this.#clockSkewMs))
      replace(at, h("span", { class: "mono" }, `in ${left}`), about.ttl_secs === null ? "" : h("small", {}, `renewed by every read and write (${plural(about.ttl_secs, "second")})`))
    }
  }

  #forks(about) {
    return section(
      "Forks",
      h("button", { type: "button", class: "quiet", on: { click: () => this.view.fork(null) } }, icon("fork"), "Fork at the tail"),
      this.forks.tree(about) ?? h("p", { class: "dim" }, "None. A fork shares history with its source and then goes its own way."),
    )
  }

  #producers(about) {
    if (!about.producer_count) return section("Producers", null, h("p", { class: "dim" }, "No idempotent producer has written here."))
    return section(
      `Producers · ${count(about.producer_count)}`,
      null,
      table(["id", "epoch", "seq", "offset"], about.producers.map(({ id, epoch, seq, offset }) => [id, count(epoch), count(seq), offset ? this.#offset(offset) : "–"])),
    )
  }

  #subscriptions(about) {
    if (!about.subscription_count) return section("Subscriptions", null, h("p", { class: "dim" }, "Nothing is woken by this stream."))
    const now = Date.now() + this.#clockSkewMs
    const lease = ({ holder, lease_until_ms }) => {
      if (lease_until_ms === null) return holder ?? "–"
      return `${holder ?? "held"}, ${countdown(lease_until_ms - now)} left`
    }
    return section(
      `Subscriptions · ${count(about.subscription_count)}`,
      null,
      table(
        ["id", "type", "state", "lease"],
        about.subscriptions.map((one) => [one.id, one.type, one.status === "failed" ? "failing" : one.has_pending ? "pending" : "caught up", lease(one)]),
      ),
    )
  }
}

export const section = (title, action, ...children) =>
  h("section", { class: "panel" }, h("header", {}, h("h2", {}, title), action), children)

const isNumber = (cell) => typeof cell === "string" && /^(–|-?[\d,.]+( \S+)?)$/.test(cell)

/** Cells of text or elements. A column of numbers is set as one: never broken, and to the right. */
export function table(names, rows) {
  const numeric = names.map((_, at) => rows.length > 0 && rows.every((cells) => isNumber(cells[at])))
  const of = (at) => (numeric[at] ? { class: "number" } : {})
  return h(
    "div",
    { class: "table-wrap" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, names.map((name, at) => h("th", { scope: "col", ...of(at) }, name)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((value, at) => h("td", of(at), value))))),
    ),
  )
}
