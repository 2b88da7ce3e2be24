// The list of messages: what is in sight, what is opened, what is searched for, where the keyboard
// is. It stays at the end while its reader does.

import { h, icon, replace } from "./dom.js"
import { bytes, count, plural } from "./format.js"
import { compileFilter, isFilter } from "./filter.js"
import { Search } from "./messages.js"
import { opened, preview } from "./message-row.js"
import { Rows } from "./virtual-list.js"

const ROW_HEIGHT = 30

export class MessageList {
  #search = null
  #opened = new Map() // message -> its row's observer
  #active = 0
  #stick = true
  #edges = { before: 0, quiet: false } // messages before the first held; whether none are to come

  /**
   * `about(offset)` gives what the opened message at an offset needs besides itself, `loadEarlier`
   * and `toEnd` are called for what lies beyond the ends, `writers` tells who wrote a message.
   */
  constructor(messages, writers, { about, loadEarlier, toEnd }) {
    this.messages = messages
    this.writers = writers
    this.about = about
    this.#build(loadEarlier, toEnd)
    this.rows = new Rows(this.scroller, this.spacer, ROW_HEIGHT, (index) => this.#row(index))
    this.rows.onDraw = (first, end) => this.#seen(first, end)
    messages.addEventListener("append", () => this.#grown())
    messages.addEventListener("prepend", (event) => this.#prepended(event.detail))
    messages.addEventListener("drop", (event) => this.#dropped(event.detail))
    writers.addEventListener("change", () => this.#showWriters())
    this.scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true })
  }

  #build(loadEarlier, toEnd) {
    this.find = h("input", {
      type: "search",
      placeholder: "Search, or filter: $.role == \"user\"",
      title: "Text, or a filter by field: $.order.total > 100 && $.items[*].sku contains \"H-1\"",
      "aria-label": "Search messages",
      "aria-describedby": "find-problem",
      autocomplete: "off",
      spellcheck: "false",
      on: { input: () => this.#look(), keydown: (event) => this.#findKey(event) },
    })
    this.found = h("span", { class: "dim found", role: "status" })
    this.findProblem = h("p", { class: "problem find-problem", id: "find-problem", role: "status" })
    this.searchBox = h("label", { class: "search" }, icon("search"), this.find, this.found)
    this.spacer = h("div", { class: "spacer", role: "presentation" })
    this.scroller = h(
      "div",
      { class: "messages", role: "list", "aria-label": "Messages", tabindex: "0", on: { keydown: (event) => this.#key(event) } },
      this.spacer,
    )
    this.earlier = h("button", { type: "button", class: "earlier", hidden: true, on: { click: loadEarlier } })
    this.empty = h("p", { class: "empty", hidden: true })
    this.newer = h("button", { type: "button", class: "newer", hidden: true, on: { click: toEnd } }, icon("end"), "Newest")
    this.element = h("div", { class: "reader" }, this.earlier, this.scroller, this.empty, this.newer)
  }

  // -- position ----------------------------------------------------------------------------

  /** Begin anew with the messages there are, at their end. */
  reset() {
    this.#forgetOpened()
    this.#search?.stop()
    this.#search = null
    this.find.value = ""
    this.#showFindProblem("")
    this.#active = 0
    this.#stick = true
    this.rows.reset()
    this.rows.count = this.messages.length
    this.#showEdges()
  }

  /** Do not follow the end until somebody scrolls there. */
  hold() {
    this.#stick = false
  }

  scrollToStart() {
    this.#stick = false
    this.rows.scrollTo(0, "start")
  }

  scrollToEnd() {
    this.#stick = true
    this.rows.scrollToEnd()
  }

  clearSearch() {
    if (!this.find.value) return
    this.find.value = ""
    this.#look()
  }

  focusSearch() {
    this.find.focus()
    this.find.select()
  }

  /** Put the keyboard on a row. */
  go(to, where = "nearest") {
    if (!this.rows.count) return
    this.#active = Math.max(0, Math.min(this.rows.count - 1, to))
    this.rows.scrollTo(this.#active, where)
    const line = this.rows.element(this.#active)?.querySelector(".message-line")
    line?.focus({ preventScroll: true })
  }

  /** Show all of a message that is in the list. */
  openAt(index) {
    if (!this.#opened.has(this.messages.items[index])) this.#toggle(index)
  }

  /** What lies before the messages held, and whether nothing is known to come. */
  showEdges(before, quiet) {
    this.#edges = { before, quiet }
    this.#showEdges()
  }

  #showEdges() {
    const { messages } = this
    const { before, quiet } = this.#edges
    const searching = this.#search !== null
    this.earlier.hidden = before <= 0 || searching || messages.length === 0
    replace(this.earlier, `${plural(before, "earlier message")} · load more`)
    this.empty.hidden = this.rows.count > 0 || !(quiet || searching)
    replace(this.empty, !searching ? "No messages yet. What is appended shows up here at once." : this.#search.needle === null ? "The filter finds no message." : "No message holds this text.")
    this.#showNewer()
    replace(
      this.found,
      searching ? `${count(this.#search.found.length)}${this.#search.finished ? "" : "…"} of ${count(messages.length)}` : "",
    )
  }

  #showNewer() {
    this.newer.hidden = this.#stick || this.rows.count === 0 || this.#search !== null
  }

  /** Who scrolls to the end stays there; an empty list has no end to be at. */
  #scrolled() {
    if (this.rows.count) this.#stick = this.rows.atEnd
    this.#showNewer()
  }

  #grown() {
    if (this.#search) {
      this.#search.more()
    } else {
      this.rows.count = this.messages.length
      if (this.#stick) this.rows.scrollToEnd()
    }
    this.#showEdges()
  }

  #prepended(number) {
    this.#shift(number)
  }

  #dropped(number) {
    this.clearSearch()
    this.#shift(-number)
  }

  /** Every message has another place; what is in sight stays in sight. */
  #shift(number) {
    const top = this.scroller.scrollTop
    this.#forgetOpened()
    this.rows.reset()
    this.rows.count = this.messages.length
    this.scroller.scrollTop = Math.max(0, top + number * ROW_HEIGHT)
    this.#active = Math.max(0, this.#active + number)
  }

  // -- rows --------------------------------------------------------------------------------

  /** The message in row `index`. */
  #messageAt(index) {
    return this.#search ? this.#search.found[index] : index
  }

  #row(index) {
    const at = this.#messageAt(index)
    const message = this.messages.items[at]
    const isOpen = this.#opened.has(message)
    const row = h(
      "div",
      { class: `message${isOpen ? " open" : ""}`, role: "listitem", "aria-posinset": index + 1, "aria-setsize": this.rows.count },
      h(
        "button",
        {
          type: "button",
          class: "message-line",
          tabindex: index === this.#active ? "0" : "-1",
          "aria-expanded": String(isOpen),
          on: { click: () => this.#toggle(index), focus: () => (this.#active = index) },
        },
        h("span", { class: "number" }, count(this.messages.number(at))),
        h("span", { class: "preview" }, preview(message, this.#search?.needle)),
        h("span", { class: "writer" }),
        h("span", { class: "size" }, bytes(message.size)),
      ),
    )
    if (isOpen) this.#fill(row, index, message)
    this.#showWriter(row, message)
    return row
  }

  #toggle(index) {
    const message = this.messages.items[this.#messageAt(index)]
    const row = this.rows.element(index)
    this.#active = index
    if (this.#opened.has(message)) {
      this.#opened.get(message).disconnect()
      this.#opened.delete(message)
      row.querySelector(".opened")?.remove()
      this.rows.setHeight(index, ROW_HEIGHT)
    } else {
      this.#fill(row, index, message)
      this.#showWriter(row, message)
    }
    row.classList.toggle("open", this.#opened.has(message))
    row.querySelector(".message-line").setAttribute("aria-expanded", String(this.#opened.has(message)))
  }

  #fill(row, index, message) {
    const offset = this.messages.offset(this.#messageAt(index))
    row.append(opened({ message, offset, needle: this.#search?.needle, ...this.about(offset) }))
    let seen = this.#opened.has(message)
    const observer = new ResizeObserver(() => {
      if (!row.isConnected || !this.#opened.has(message)) return
      this.rows.setHeight(index, row.offsetHeight)
      if (!seen) row.scrollIntoView({ block: "nearest" })
      seen = true
    })
    observer.observe(row)
    this.#opened.get(message)?.disconnect()
    this.#opened.set(message, observer)
  }

  #forgetOpened() {
    for (const observer of this.#opened.values()) observer.disconnect()
    this.#opened.clear()
  }

  // -- who wrote what is in sight ----------------------------------------------------------

  #seen(first, end) {
    const indexes = Array.from({ length: end - first }, (_, i) => this.#messageAt(first + i))
    this.writers.want(indexes.filter((at) => at < this.messages.length))
  }

  #showWriters() {
    const [first, end] = this.rows.inSight
    for (let at = first; at < end; at += 1) {
      const row = this.rows.element(at)
      const message = this.messages.items[this.#messageAt(at)]
      if (row && message) this.#showWriter(row, message)
    }
  }

  #showWriter(row, { writer }) {
    if (writer) {
      const said = `producer ${writer.id}, epoch ${count(writer.epoch)}, seq ${count(writer.seq)}`
      const short = row.querySelector(".writer")
      short.title = said
      replace(short, writer.id)
    }
    const full = row.querySelector(".opened .written-by")
    if (!full) return
    if (writer) replace(full, "by ", h("b", {}, writer.id), ` · epoch ${count(writer.epoch)} · seq ${count(writer.seq)}`)
    else replace(full, writer === null ? "producer unknown" : "")
  }

  // -- keyboard and search -----------------------------------------------------------------

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest(".opened")) return
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / ROW_HEIGHT) - 1)
    const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page }
    if (event.key in moves) this.go(this.#active + moves[event.key])
    else if (event.key === "Home") this.go(0)
    else if (event.key === "End") this.go(this.rows.count - 1)
    else return
    event.preventDefault()
  }

  #look() {
    const wanted = this.#wanted()
    this.#search?.stop()
    this.#search = null
    this.#forgetOpened()
    if (wanted) this.#search = new Search(this.messages, wanted, () => this.#lookedOn())
    this.#active = 0
    this.rows.reset()
    this.rows.count = this.#search ? this.#search.found.length : this.messages.length
    if (!wanted && this.#stick) this.rows.scrollToEnd()
    this.#showEdges()
  }

  /** What a search looks for; null where nothing is asked for, or it is not understood. */
  #wanted() {
    const asked = this.find.value.trim()
    const needle = asked.toLowerCase()
    this.#showFindProblem("")
    if (!isFilter(asked)) return needle ? { needle, matches: (text) => text.toLowerCase().includes(needle) } : null
    try {
      return { matches: compileFilter(asked) }
    } catch (error) {
      this.#showFindProblem(error.message)
      return null
    }
  }

  #showFindProblem(text) {
    replace(this.findProblem, text)
    this.find.setAttribute("aria-invalid", String(text !== ""))
  }

  #lookedOn() {
    if (!this.#search) return
    this.rows.count = this.#search.found.length
    this.#showEdges()
  }

  #findKey(event) {
    if (event.key === "Escape") {
      this.find.value = ""
      this.#look()
      this.find.blur()
    } else if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault()
      this.go(0)
    }
  }
}
