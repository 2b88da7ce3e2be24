// The state view: change messages folded into the rows they leave, each with the change that
// last touched it.

import { h, replace } from "./dom.js"
import { count, plural } from "./format.js"
import { Rows } from "./rows.js"
import { textOf } from "./messages.js"

const ROW_HEIGHT = 30
const SLICE_MS = 8
const COLUMNS_MAX = 8
const CELL_CHARS = 120
const REMOVALS = new Set(["delete", "remove"])
const ALL = "all types"

/** A message as a change: { type, key, operation, value }, { control }, or null if it is none. */
export function parseChange(text) {
  let message
  try {
    message = JSON.parse(text)
  } catch {
    return null
  }
  if (message === null || typeof message !== "object") return null
  const control = message.headers?.control
  if (typeof control === "string") return { control }
  const operation = message.headers?.operation ?? message.operation
  if (typeof operation !== "string" || message.key === undefined) return null
  return { type: String(message.type ?? ""), key: String(message.key), operation, value: message.value }
}

/** Rows by type and key, as a run of changes leaves them. */
export class Materialised {
  constructor() {
    this.rows = new Map() // "type\0key" -> { type, key, value, changedBy, operation, changes }
    this.ignored = 0
  }

  apply(text, number) {
    const change = parseChange(text)
    if (change === null) {
      this.ignored += 1
    } else if (change.control !== undefined) {
      if (change.control === "reset") this.rows.clear()
    } else {
      this.#apply(change, number)
    }
  }

  #apply({ type, key, operation, value }, number) {
    const id = `${type}\0${key}`
    const row = this.rows.get(id)
    if (REMOVALS.has(operation)) {
      this.rows.delete(id)
      return
    }
    const changes = (row?.changes ?? 0) + 1
    const kept = operation === "append" && row ? joined(row.value, value) : value
    this.rows.set(id, { type, key, value: kept, changedBy: number, operation, changes })
  }
}

/** What an `append` leaves: text grows, lists grow, anything else becomes a list of its parts. */
function joined(before, more) {
  if (typeof before === "string" && typeof more === "string") return before + more
  return (Array.isArray(before) ? before : [before]).concat(more)
}

export class StateTable extends EventTarget {
  #state = new Materialised()
  #done = 0
  #running = false
  #shown = false
  #rows = []
  #columns = []
  #type = ALL

  constructor(messages) {
    super()
    this.messages = messages
    this.note = h("p", { class: "dim", role: "status" })
    this.types = h("select", { "aria-label": "Type", on: { change: () => this.#choose(this.types.value) } })
    this.head = h("div", { class: "state-row state-head", role: "row" })
    this.spacer = h("div", { class: "spacer", role: "presentation" })
    this.body = h("div", { class: "state-body", role: "rowgroup" }, this.spacer)
    this.grid = h("div", { class: "state-grid", role: "table", "aria-label": "State", tabindex: "0" }, h("div", { role: "rowgroup" }, this.head), this.body)
    this.element = h("div", { class: "state" }, h("div", { class: "state-tools" }, this.types, this.note), this.grid)
    this.rows = new Rows(this.body, this.spacer, ROW_HEIGHT, (index) => this.#row(index))
    messages.addEventListener("append", () => this.#go())
    for (const type of ["reset", "prepend", "drop"]) messages.addEventListener(type, () => this.#restart())
  }

  show(shown) {
    this.#shown = shown
    this.#go()
  }

  #restart() {
    this.#state = new Materialised()
    this.#done = 0
    this.#type = ALL
    this.#go()
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
      const until = performance.now() + SLICE_MS
      const { items } = this.messages
      while (this.#done < items.length && performance.now() < until) {
        this.#state.apply(textOf(items[this.#done]), this.messages.number(this.#done))
        this.#done += 1
      }
      this.#draw()
      await new Promise((resolve) => setTimeout(resolve, this.#done < this.messages.length ? 0 : 100))
    } while (this.#shown && this.#done < this.messages.length)
    this.#running = false
  }

  #draw() {
    const all = [...this.#state.rows.values()]
    const types = [...new Set(all.map((row) => row.type))].sort()
    if (!types.includes(this.#type)) this.#type = ALL
    replace(this.types, [ALL, ...types].map((type) => h("option", { value: type, selected: type === this.#type }, type)))
    this.#rows = this.#type === ALL ? all : all.filter((row) => row.type === this.#type)
    this.#columns = columnsOf(this.#rows)
    this.grid.style.setProperty("--columns", this.#columns.length || 1)
    const names = ["type", "key", ...(this.#columns.length ? this.#columns : ["value"]), "changed by"]
    replace(this.head, names.map((name) => h("span", { role: "columnheader" }, name)))
    const first = this.messages.first?.messages ?? 0
    const { ignored } = this.#state
    replace(
      this.note,
      [
        plural(this.#rows.length, "row"),
        first ? `from message ${count(first)} on` : null,
        ignored ? `${plural(ignored, "message")} are no changes` : null,
      ]
        .filter(Boolean)
        .join(" · "),
    )
    this.rows.reset()
    this.rows.count = this.#rows.length
  }

  #row(index) {
    const row = this.#rows[index]
    const cells = this.#columns.length ? this.#columns.map((name) => row.value?.[name]) : [row.value]
    return h(
      "div",
      { class: "state-row", role: "row" },
      h("span", { role: "cell", class: "dim" }, row.type),
      h("span", { role: "cell", class: "state-key", title: row.key }, row.key),
      cells.map((value) => cell(value)),
      h(
        "span",
        { role: "cell" },
        h(
          "button",
          {
            type: "button",
            class: "link",
            title: `${row.operation}; ${plural(row.changes, "change")} so far`,
            on: { click: () => this.dispatchEvent(new CustomEvent("message", { detail: row.changedBy })) },
          },
          `${row.operation} #${count(row.changedBy)}`,
        ),
      ),
    )
  }
}

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
