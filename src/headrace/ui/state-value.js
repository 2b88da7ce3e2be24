// One row of the state view, whole: its value as it is now, and the change that last touched it.

import { copy, h, iconButton, replace } from "./dom.js"
import { count, indentJson, paintJson, plural } from "./format.js"

const SHOWN_CHARS = 100_000
const PAINTED_CHARS = 20_000

export class StateValue {
  #drawn = null

  /** `openMessage(number)` shows a message, `closed()` is called when the row is put away. */
  constructor({ openMessage, closed }) {
    this.openMessage = openMessage
    this.closed = closed
    this.title = h("h2", { tabindex: "-1" })
    this.about = h("span", { class: "dim" })
    this.element = h(
      "section",
      { class: "state-value", "aria-label": "Row", hidden: true, on: { keydown: (event) => event.key === "Escape" && this.close() } },
      h(
        "header",
        {},
        this.title,
        this.about,
        h("span", { class: "grow" }),
        h("button", { type: "button", class: "quiet", on: { click: () => copy(this.#text(), "the value") } }, "Copy"),
        iconButton("close", "Close the row", () => this.close()),
      ),
    )
  }

  #text() {
    return JSON.stringify(this.#drawn.value) ?? ""
  }

  /** Show a row; null where there is none any more. */
  show(row, gone) {
    this.element.hidden = row === null && !gone
    this.element.classList.toggle("gone", gone)
    if (gone) replace(this.about, "deleted")
    if (row === null || row === this.#drawn) return
    this.#drawn = row
    replace(this.title, h("span", { class: "dim" }, `${row.type} `), row.key)
    const link = (number) => h("button", { type: "button", class: "link", on: { click: () => this.openMessage(number) } }, `${row.operation} #${count(number)}`)
    replace(this.about, row.changedBy === null ? "from the snapshot" : [link(row.changedBy), ` · ${plural(row.changes, "change")}`])
    const laid = indentJson(this.#text(), SHOWN_CHARS)
    const rest = laid.whole ? null : h("span", { class: "rest" }, "\n… the rest is not shown; copy it")
    const shown = laid.text.length <= PAINTED_CHARS ? paintJson(laid.text) : laid.text
    this.element.querySelector(".payload")?.remove()
    this.element.append(h("pre", { class: "payload", tabindex: "0", "aria-label": "Value" }, shown, rest))
  }

  close() {
    this.clear()
    this.closed()
  }

  clear() {
    this.#drawn = null
    this.element.hidden = true
    this.element.querySelector(".payload")?.remove()
  }
}
