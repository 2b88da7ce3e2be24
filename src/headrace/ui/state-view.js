// The state view: the table that a stream's changes add up to, each row with the change that last
// touched it. Where history was given up for a snapshot of the state, it begins with that. A row
// that is opened shows its whole value below the table, and follows its changes there.

import { h, replace } from "./dom.js"
import { Materialised, readState, snapshotOffset } from "./state-fold.js"
import { count, plural } from "./format.js"
import { parseOffset } from "./stream-reader.js"
import { Rows } from "./virtual-list.js"
import { StateValue } from "./state-value.js"
import { textOf } from "./messages.js"
import { Away, Problem } from "./server.js"

const ROW_HEIGHT = 30
const SLICE_MS = 8
const DRAW_MS = 250 // between two looks at a table that is still being made
const COLUMNS_MAX = 8
const CELL_CHARS = 120
const ALL = "all types"

export class StateTable extends EventTarget {
  #state = new Materialised()
  #done = 0
  #running = false
  #shown = false
  #rows = []
  #columns = []
  #type = ALL
  #began = null // where the fold began, and as what: start, snapshot or middle; null until known
  #drawnAt = 0
  #open = null // "type\0key" of the row that is open

  constructor(server, messages) {
    super()
    this.server = server
    this.messages = messages
    this.stream = null
    this.note = h("p", { class: "dim", role: "status" })
    this.types = h("select", { "aria-label": "Type", on: { change: () => this.#choose(this.types.value) } })
    this.head = h("div", { class: "state-row state-head", role: "row" })
    this.spacer = h("div", { class: "spacer", role: "presentation" })
    this.body = h("div", { class: "state-body", role: "rowgroup" }, this.spacer)
    this.grid = h(
      "div",
      { class: "state-grid", role: "table", "aria-label": "State", tabindex: "0", on: { keydown: (event) => this.#key(event) } },
      h("div", { role: "rowgroup" }, this.head),
      this.body,
    )
    this.value = new StateValue({ openMessage: (number) => this.#openMessage(number), closed: () => this.#closed() })
    this.element = h("div", { class: "state" }, h("div", { class: "state-tools" }, this.types, this.note), this.grid, this.value.element)
    this.rows = new Rows(this.body, this.spacer, ROW_HEIGHT, (index) => this.#row(index))
    messages.addEventListener("append", () => this.#go())
    for (const type of ["reset", "prepend", "drop"]) messages.addEventListener(type, () => this.#restart())
  }

  open(stream) {
    this.stream = stream
    this.#restart()
  }

  show(shown) {
    this.#shown = shown
    this.#go()
  }

  #restart() {
    this.#state = new Materialised()
    this.#done = 0
    this.#type = ALL
    this.#began = null
    this.#open = null
    this.value.clear()
    this.#go()
  }

  /** Find out what the first message held follows. */
  async #begin() {
    const state = this.#state
    const { first } = this.messages
    let found = null
    try {
      found = first.messages ? await this.#findSnapshot() : null
    } catch (error) {
      if (!(error instanceof Problem || error instanceof Away)) throw error
    }
    if (state !== this.#state) return // another stream, or other messages of it
    this.#began = { at: first.messages, as: first.messages ? "middle" : "start" }
    if (!found) return
    state.load(found.collections)
    this.#done = found.index
    this.#began = { at: first.messages + found.index, as: "snapshot" }
  }

  /** The latest snapshot, if it is one of the state and the messages held follow it. */
  async #findSnapshot() {
    const { server, stream, messages } = this
    const offset = await snapshotOffset(server, stream)
    if (offset === null) return null
    const collections = await readState(server, stream, offset)
    const index = parseOffset(offset).messages - messages.first.messages
    if (collections === null || index < 0 || index > messages.length) return null
    const there = index === messages.length ? messages.next : messages.offset(index)
    return there === offset ? { collections, index } : null
  }

  #choose(type) {
    this.#type = type
    this.#draw()
  }

  /** Fold in what is new, a few milliseconds at a time; nothing is done while nobody looks. */
  async #go() {
    if (this.#running || !this.#shown) return
    this.#running = true
    do {
      while (this.#began === null && this.messages.first) await this.#begin()
      const until = performance.now() + SLICE_MS
      const { items } = this.messages
      while (this.#done < items.length && performance.now() < until) {
        this.#state.apply(textOf(items[this.#done]), this.messages.number(this.#done))
        this.#done += 1
      }
      if (!this.#isBehind || performance.now() - this.#drawnAt > DRAW_MS) this.#draw()
      await new Promise((resolve) => setTimeout(resolve, this.#isBehind ? 0 : 100))
    } while (this.#shown && this.#isBehind)
    this.#running = false
  }

  get #isBehind() {
    return this.#done < this.messages.length || (this.#began === null && this.messages.first !== null)
  }

  #draw() {
    this.#drawnAt = performance.now()
    const all = [...this.#state.rows.values()]
    const types = [...new Set(all.map((row) => row.type))].sort()
    if (!types.includes(this.#type)) this.#type = ALL
    replace(this.types, [ALL, ...types].map((type) => h("option", { value: type, selected: type === this.#type }, type)))
    this.#rows = this.#type === ALL ? all : all.filter((row) => row.type === this.#type)
    this.#columns = columnsOf(this.#rows)
    this.grid.style.setProperty("--columns", this.#columns.length || 1)
    const names = ["type", "key", ...(this.#columns.length ? this.#columns : ["value"]), "changed by"]
    replace(this.head, names.map((name) => h("span", { role: "columnheader" }, name)))
    const { ignored } = this.#state
    const { at, as } = this.#began ?? {}
    replace(
      this.note,
      [
        plural(this.#rows.length, "row"),
        as === "snapshot" ? `from the snapshot at message ${count(at)} on` : null,
        as === "middle" ? `from message ${count(at)} on: what came before is not in it` : null,
        ignored ? plural(ignored, "message is no change", "messages are no changes") : null,
      ]
        .filter(Boolean)
        .join(" · "),
    )
    const focused = this.#focused()
    this.rows.reset()
    this.rows.count = this.#rows.length
    this.#showOpen()
    if (focused !== null) this.#focus(focused)
  }

  // -- the row that is open, and the keyboard ----------------------------------------------

  #toggle(row) {
    const id = idOf(row)
    this.#open = this.#open === id ? null : id
    this.value.clear()
    this.rows.refresh()
    this.rows.draw()
    this.#showOpen()
    this.#focus(this.#rows.indexOf(row))
  }

  #showOpen() {
    const row = this.#open === null ? null : (this.#state.rows.get(this.#open) ?? null)
    this.value.show(row, this.#open !== null && row === null)
  }

  #closed() {
    const at = this.#rows.findIndex((row) => idOf(row) === this.#open)
    this.#open = null
    this.rows.refresh()
    this.rows.draw()
    if (at >= 0) this.#focus(at)
  }

  /** The row that has the keyboard; null if none has. */
  #focused() {
    const at = document.activeElement?.closest(".state-row")?.dataset.index
    return at !== undefined && this.body.contains(document.activeElement) ? Number(at) : null
  }

  #focus(index) {
    if (!this.#rows.length) return
    const at = Math.max(0, Math.min(this.#rows.length - 1, index))
    this.rows.scrollTo(at)
    this.rows.element(at)?.querySelector(".state-key button").focus({ preventScroll: true })
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return
    const page = Math.max(1, Math.floor(this.body.clientHeight / ROW_HEIGHT) - 1)
    const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page }
    const at = this.#focused()
    if (event.key in moves) this.#focus(at === null ? 0 : at + moves[event.key])
    else if (event.key === "Home") this.#focus(0)
    else if (event.key === "End") this.#focus(this.#rows.length - 1)
    else if (event.key === "Escape" && this.#open !== null) this.value.close()
    else return
    event.preventDefault()
  }

  #openMessage(number) {
    this.dispatchEvent(new CustomEvent("message", { detail: number }))
  }

  #row(index) {
    const row = this.#rows[index]
    const isOpen = idOf(row) === this.#open
    const open = (event) => event.target.closest("button.link") || this.#toggle(row)
    const cells = this.#columns.length ? this.#columns.map((name) => row.value?.[name]) : [row.value]
    return h(
      "div",
      { class: `state-row${isOpen ? " open" : ""}`, role: "row", data: { index }, on: { click: open } },
      h("span", { role: "cell", class: "dim" }, row.type),
      h("span", { role: "cell", class: "state-key", title: row.key }, h("button", { type: "button", "aria-expanded": String(isOpen) }, row.key || "(empty)")),
      cells.map((value) => cell(value)),
      h(
        "span",
        { role: "cell" },
        row.changedBy === null ? h("span", { class: "dim" }, "snapshot") : this.#link(row),
      ),
    )
  }

  /** To the message that last touched a row. */
  #link(row) {
    return h(
      "button",
      {
        type: "button",
        class: "link",
        title: `${row.operation}; ${plural(row.changes, "change")} so far`,
        on: { click: () => this.#openMessage(row.changedBy) },
      },
      `${row.operation} #${count(row.changedBy)}`,
    )
  }
}

const idOf = ({ type, key }) => `${type}\0${key}`

function cell(value) {
  if (value === undefined) return h("span", { role: "cell", class: "dim" }, "")
  const text = typeof value === "string" ? value : JSON.stringify(value)
  const kind = value === null || typeof value === "boolean" ? "word" : typeof value
  return h("span", { role: "cell", class: `json-${kind}`, title: text.slice(0, 1000) }, text.slice(0, CELL_CHARS))
}

/** The fields that rows have, the common ones first; none where values are no objects. */
function columnsOf(rows) {
  const counts = new Map()
  for (const { value } of rows.slice(0, 200)) {
    if (value === null || typeof value !== "object" || Array.isArray(value)) continue
    for (const name of Object.keys(value)) counts.set(name, (counts.get(name) ?? 0) + 1)
  }
  return [...counts]
    .sort((a, b) => b[1] - a[1])
    .slice(0, COLUMNS_MAX)
    .map(([name]) => name)
}
