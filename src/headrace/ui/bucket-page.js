// One bucket: what is in it, how large it is, how fast it grows, and the latest changes.
//
// The bucket is listed once, page by page; from then on its feed says which streams moved and to
// which offset. What the listing does not say (the offset of a snapshot, the rate) is asked for
// the rows in sight.

import { copy, h, icon, replace, toast } from "./dom.js"
import { bytes, clock, count, moment, plural, rate } from "./format.js"
import { Chart, Rate, sparkline } from "./charts.js"
import { formDialog } from "./dialogs.js"
import { inSlices } from "./chunked-work.js"
import { parseOffset } from "./stream-reader.js"
import { Away, Problem } from "./server.js"
import { Rows } from "./virtual-list.js"
import { Ticker } from "./status-poller.js"

const ROW_HEIGHT = 30
const PAGE = 1000 // streams, the most that one page of a listing has
const FEED_SHOWN = 50
const ORDERS = {
  "last change": (a, b) => b.changedAt - a.changedAt || byId(a, b),
  name: (a, b) => byId(a, b),
  size: (a, b) => b.bytes - a.bytes || byId(a, b),
  messages: (a, b) => b.messages - a.messages || byId(a, b),
}
const byId = (a, b) => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0)

export class BucketPage {
  #ticker
  #bucket = null
  #cursor = null // the place in the feed; null while the bucket is not listed
  #streams = new Map() // id -> { id, messages, bytes, closed, type, createdAt, changedAt }
  #sorted = []
  #feed = [] // the latest changes, newest first
  #appends = new Rate()
  #sizes = new Rate()
  #grown = { messages: 0, bytes: 0 } // appended since the page was opened

  constructor(server, statuses, { open, create, back, gone }) {
    this.server = server
    this.statuses = statuses
    this.actions = { open, create, back, gone }
    this.charts = [new Chart("Appends", ["per second"], rate), new Chart("Bytes", ["per second"], bytes)]
    this.#build()
    this.rows = new Rows(this.body, this.spacer, ROW_HEIGHT, (index) => this.#row(index))
    this.rows.onDraw = (first, end) => this.#seen(first, end)
    this.#ticker = new Ticker(() => this.#ask())
    statuses.addEventListener("change", () => this.#bucket !== null && this.#showStatuses())
  }

  #build() {
    this.title = h("h1", { class: "bucket-name" })
    this.about = h("p", { class: "dim" })
    this.notice = h("div", { class: "notice", role: "status", hidden: true })
    this.tiles = h("div", { class: "tiles" })
    this.order = h("select", { "aria-label": "Order", on: { change: () => this.#sort() } }, Object.keys(ORDERS).map((name) => h("option", { value: name }, name)))
    const names = ["stream", "content type", "messages", "size", "appends/s", "snapshot", "last change"]
    this.spacer = h("div", { class: "spacer", role: "presentation" })
    this.body = h("div", { class: "bucket-body", role: "rowgroup" }, this.spacer)
    this.table = h(
      "div",
      { class: "bucket-table", role: "table", "aria-label": "Streams of the bucket", tabindex: "0" },
      h("div", { role: "rowgroup" }, h("div", { class: "bucket-row bucket-head", role: "row" }, names.map((name) => h("span", { role: "columnheader" }, name)))),
      this.body,
    )
    this.feed = h("ol", { class: "feed" })
    const button = (name, label, act, kind = "quiet") => h("button", { type: "button", class: kind, on: { click: act } }, icon(name), label)
    this.element = h(
      "section",
      { class: "bucket overview", "aria-label": "Bucket", tabindex: "0" },
      h(
        "header",
        { class: "overview-head" },
        button("back", "List", this.actions.back, "quiet only-phone"),
        this.title,
        this.about,
        h("span", { class: "grow" }),
        button("plus", "New stream", () => this.actions.create(`/${this.#bucket}/`)),
        button("terminal", "Copy as curl", () => copy(this.server.curl("GET", this.server.url(this.#path)), "the command")),
        button("trash", "Delete", () => this.#delete()),
      ),
      this.notice,
      this.tiles,
      h("div", { class: "charts" }, this.charts.map((chart) => chart.element)),
      h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Streams"), h("label", { class: "order" }, h("span", { class: "dim" }, "by"), this.order)), this.table),
      h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Latest changes")), this.feed),
    )
  }

  get #path() {
    return `${this.server.settings.bucketRoot}/${encodeURIComponent(this.#bucket)}/streams`
  }

  /** Show a bucket; null shows none. */
  open(bucket) {
    const isNew = bucket !== this.#bucket
    this.#bucket = bucket
    if (bucket === null) {
      this.statuses.want([], this)
      return
    }
    document.title = `/${bucket} · Headrace`
    if (isNew) this.#forget()
    this.#ticker.soon()
  }

  #forget() {
    this.#cursor = null
    this.#streams = new Map()
    this.#feed = []
    this.#appends = new Rate()
    this.#sizes = new Rate()
    this.#grown = { messages: 0, bytes: 0 }
    for (const chart of this.charts) chart.clear()
    replace(this.title, "/", h("b", {}, this.#bucket))
    replace(this.about)
    this.notice.hidden = true
    this.#sort()
    this.#showFeed()
  }

  async #ask() {
    const bucket = this.#bucket
    if (bucket === null || this.server.away) return
    try {
      if (this.#cursor === null) await this.#list(bucket)
      await this.#follow(bucket)
    } catch (error) {
      if (bucket !== this.#bucket) return
      if (!(error instanceof Away)) this.#cursor = null // the feed no longer has that place: list again
      this.notice.hidden = !(error instanceof Problem)
      replace(this.notice, error.message)
      if (!(error instanceof Problem)) throw error
    }
  }

  /** Everything in the bucket, after a place in its feed: what moves meanwhile is in both. */
  async #list(bucket) {
    const { server } = this
    const [about, feed] = [await server.json(`${server.settings.bucketRoot}/${encodeURIComponent(bucket)}`), await server.request("GET", this.#path, { query: { changes_from: "now" } })]
    const found = new Map()
    for (let after = null, more = true; more; ) {
      const query = after === null ? { limit: PAGE } : { limit: PAGE, after }
      const page = await server.json(this.#path, { query })
      if (bucket !== this.#bucket) return
      await inSlices(page.streams, (listed) => void found.set(listed.stream_id, streamOf(listed)))
      after = page.next_cursor
      more = page.has_more
    }
    this.notice.hidden = true
    replace(this.about, `created ${moment(about.created_at_ms)}`)
    this.#streams = found
    this.#cursor = feed.headers.get("stream-next-offset")
    this.#sort()
  }

  async #follow(bucket) {
    const now = Date.now()
    let moved = false
    for (let upToDate = false; !upToDate; ) {
      const response = await this.server.request("GET", this.#path, { query: { changes_from: this.#cursor } })
      const changes = await response.json()
      if (bucket !== this.#bucket) return
      await inSlices(changes, (change) => this.#take(change, now))
      moved ||= changes.length > 0
      this.#cursor = response.headers.get("stream-next-offset")
      upToDate = response.headers.get("stream-up-to-date") === "true"
    }
    const appends = this.#appends.next(now, this.#grown.messages)
    const sizes = this.#sizes.next(now, this.#grown.bytes)
    if (appends !== null && sizes !== null) {
      this.charts[0].push(now, [appends])
      this.charts[1].push(now, [sizes])
    }
    if (!moved) return
    this.#sort()
    this.#showFeed()
  }

  /** One line of the feed. */
  #take(change, now) {
    const { stream_id: id, deleted } = change
    const known = this.#streams.get(id)
    if (deleted) {
      this.#streams.delete(id)
      this.#note({ at: now, id, what: "deleted" })
      return
    }
    const tail = parseOffset(change.next_offset)
    const isSame = known && (change.created_at_ms === undefined || known.createdAt === change.created_at_ms)
    const messages = tail.messages - (isSame ? known.messages : 0)
    this.#grown.messages += Math.max(0, messages)
    this.#grown.bytes += Math.max(0, tail.bytes - (isSame ? known.bytes : 0))
    const what = !isSame ? "created" : change.closed && !known.closed ? "closed" : null
    this.#streams.set(id, {
      ...(isSame ? known : { id, type: "", createdAt: change.created_at_ms }),
      messages: tail.messages,
      bytes: tail.bytes,
      closed: change.closed === true,
      changedAt: now,
    })
    this.#note({ at: now, id, what: [what, messages > 0 ? plural(messages, "message") : null].filter(Boolean).join(", ") || "changed", to: tail.messages })
  }

  #note(change) {
    this.#feed.unshift(change)
    if (this.#feed.length > FEED_SHOWN) this.#feed.pop()
  }

  #sort() {
    this.#sorted = [...this.#streams.values()].sort(ORDERS[this.order.value])
    this.table.style.setProperty("--rows", Math.min(14, Math.max(3, this.#sorted.length)))
    this.rows.reset()
    this.rows.count = this.#sorted.length
    const sum = (what) => this.#sorted.reduce((total, stream) => total + what(stream), 0)
    const tile = (name, value) => h("div", { class: "tile" }, h("span", { class: "dim" }, name), h("b", {}, value))
    replace(
      this.tiles,
      tile("Streams", count(this.#sorted.length)),
      tile("Messages", count(sum((stream) => stream.messages))),
      tile("Appended", bytes(sum((stream) => stream.bytes))),
      tile("Closed", count(sum((stream) => (stream.closed ? 1 : 0)))),
    )
  }

  #name(stream) {
    return `/${this.#bucket}/${stream.id}`
  }

  #row(index) {
    const stream = this.#sorted[index]
    const open = () => this.actions.open(this.#name(stream))
    const cell = (value, kind) => h("span", { role: "cell", class: kind }, value)
    const row = h(
      "div",
      { class: "bucket-row", role: "row" },
      h("span", { role: "cell", class: "bucket-stream" }, h("span", { class: `dot ${stream.closed ? "closed" : "open"}`, role: "img", "aria-label": stream.closed ? "closed" : "open" }), h("button", { type: "button", class: "link", title: stream.id, on: { click: open } }, stream.id)),
      cell(stream.type, "dim type"),
      cell(count(stream.messages), "number"),
      cell(bytes(stream.bytes), "number"),
      cell("", "growth"),
      cell("", "number snapshot"),
      cell(stream.changedAt ? moment(stream.changedAt) : "–", "dim time"),
    )
    this.#showStatus(row, stream)
    return row
  }

  #seen(first, end) {
    if (this.#bucket === null) return
    this.statuses.want(this.#sorted.slice(first, end).map((stream) => this.#name(stream)), this)
  }

  #showStatuses() {
    const [first, end] = this.rows.inSight
    for (let at = first; at < end; at += 1) {
      const row = this.rows.element(at)
      if (row && this.#sorted[at]) this.#showStatus(row, this.#sorted[at])
    }
  }

  #showStatus(row, stream) {
    const status = this.statuses.get(this.#name(stream))
    if (!status) return
    const { rates } = status
    replace(row.querySelector(".growth"), rates.length > 1 ? sparkline(rates) : null, rates.length ? h("span", {}, rate(rates.at(-1))) : null)
    replace(row.querySelector(".snapshot"), status.earliest ? `at ${count(status.earliest)}` : "–")
    if (!stream.type) replace(row.querySelector(".type"), status.type)
  }

  #showFeed() {
    const line = ({ at, id, what, to }) =>
      h("li", {}, h("span", { class: "dim mono" }, clock(at)), h("b", {}, id), h("span", {}, what), to === undefined ? null : h("span", { class: "dim" }, `at ${count(to)}`))
    replace(this.feed, this.#feed.length ? this.#feed.map(line) : h("li", { class: "dim" }, "Nothing has changed since this page was opened."))
  }

  #delete() {
    const path = `${this.server.settings.bucketRoot}/${encodeURIComponent(this.#bucket)}`
    formDialog({
      title: "Delete the bucket?",
      intro: `/${this.#bucket} will be gone. A bucket that still holds streams cannot be deleted.`,
      fields: [],
      submit: "Delete bucket",
      danger: true,
      request: () => this.server.curl("DELETE", this.server.url(path)),
      send: async () => {
        await this.server.request("DELETE", path)
        toast(`Deleted /${this.#bucket}`)
        this.actions.gone()
      },
    })
  }
}

const streamOf = (listed) => {
  const { messages, bytes: size } = parseOffset(listed.next_offset)
  return {
    id: listed.stream_id,
    messages,
    bytes: size,
    closed: listed.status !== "Open",
    type: listed.content_type,
    createdAt: listed.created_at_ms,
    changedAt: listed.last_write_at_ms ?? 0,
  }
}
