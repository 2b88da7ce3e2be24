// The middle: one stream's messages, newest at the end, live until paused.

import { copy, h, icon, iconButton, replace, toast } from "./dom.js"
import { bytes, count, plural } from "./format.js"
import { Composer } from "./composer.js"
import { closeDialog, deleteDialog, forkDialog } from "./dialogs.js"
import { Messages, Search } from "./messages.js"
import { opened, preview } from "./message-row.js"
import { follow, isJson, parseOffset, readFrame } from "./reading.js"
import { Rows } from "./rows.js"
import { StateTable } from "./state.js"

const ROW_HEIGHT = 30
const FIRST_MESSAGES = 20_000 // of a long stream: its last ones, and the rest on demand
const SHORT_BYTES = 16 * 1024 * 1024 // a stream up to this is read whole

export class StreamView extends EventTarget {
  #abort = null
  #search = null
  #opened = new Map() // message -> its row's observer
  #active = 0
  #tail = null
  #floor = null
  #stick = true

  constructor(server, { back, details, goTo }) {
    super()
    this.server = server
    this.goTo = goTo
    this.stream = null
    this.state = {}
    this.messages = new Messages()
    this.composer = new Composer(server)
    this.table = new StateTable(this.messages)
    this.#build(back, details)
    this.rows = new Rows(this.scroller, this.spacer, ROW_HEIGHT, (index) => this.#row(index))
    this.messages.addEventListener("append", () => this.#grown())
    this.messages.addEventListener("prepend", (event) => this.#prepended(event.detail))
    this.messages.addEventListener("drop", (event) => this.#dropped(event.detail))
    this.scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true })
    server.addEventListener("presence", () => this.#showState())
  }

  // -- the page's part ---------------------------------------------------------------------

  #build(back, details) {
    this.title = h("h1", { class: "stream-name" })
    this.badges = h("div", { class: "badges" })
    this.liveButton = h("button", { type: "button", class: "live", on: { click: () => this.toggleLive() } })
    this.find = h("input", {
      type: "search",
      placeholder: "Search messages",
      "aria-label": "Search messages",
      autocomplete: "off",
      spellcheck: "false",
      on: { input: () => this.#look(), keydown: (event) => this.#findKey(event) },
    })
    this.found = h("span", { class: "dim found", role: "status" })
    this.jump = h("input", {
      class: "mono jump",
      placeholder: "offset or number",
      "aria-label": "Jump to an offset or a message number",
      autocomplete: "off",
      spellcheck: "false",
    })
    this.spacer = h("div", { class: "spacer", role: "presentation" })
    this.scroller = h(
      "div",
      { class: "messages", role: "list", "aria-label": "Messages", tabindex: "0", on: { keydown: (event) => this.#key(event) } },
      this.spacer,
    )
    this.notice = h("div", { class: "notice", role: "status", hidden: true })
    this.earlier = h(
      "button",
      { type: "button", class: "earlier", hidden: true, on: { click: () => this.#loadEarlier() } },
      "",
    )
    this.empty = h("p", { class: "empty", hidden: true })
    this.modes = ["Messages", "State"].map((mode) =>
      h("button", { type: "button", class: "tab", "aria-pressed": "false", on: { click: () => this.setMode(mode) } }, mode),
    )
    this.newer = h(
      "button",
      { type: "button", class: "newer", hidden: true, on: { click: () => this.jumpToEnd() } },
      icon("end"),
      "Newest",
    )
    const actions = [
      ["fork", "Fork", () => this.fork(null)],
      ["lock", "Close stream", () => closeDialog(this.server, this.stream)],
      ["trash", "Delete stream", () => deleteDialog(this.server, this.stream, () => this.goTo(null))],
    ]
    this.actions = h(
      "div",
      { class: "actions" },
      actions.map(([name, label, act]) => iconButton(name, label, act, { data: { action: label } })),
      this.#curlMenu(),
      iconButton("info", "Details", details, { class: "icon-button only-narrow" }),
    )
    this.element = h(
      "section",
      { class: "view", "aria-label": "Stream" },
      h("header", { class: "view-head" }, iconButton("back", "Back to the list", back, { class: "icon-button only-phone" }), h("div", { class: "view-title" }, this.title, this.badges), this.actions),
      h(
        "div",
        { class: "toolbar", role: "toolbar", "aria-label": "Reading" },
        this.liveButton,
        h("div", { class: "segments", role: "group", "aria-label": "Show" }, this.modes),
        h(
          "div",
          { class: "jumps" },
          iconButton("start", "Jump to the start (g)", () => this.jumpToStart()),
          h("form", { class: "jump-form", on: { submit: (event) => this.#jumpTo(event) } }, this.jump),
          iconButton("end", "Jump to the end (e)", () => this.jumpToEnd()),
        ),
        h("label", { class: "search" }, icon("search"), this.find, this.found),
      ),
      this.notice,
      h("div", { class: "reader" }, this.earlier, this.scroller, this.empty, this.newer),
      this.table.element,
      this.composer.element,
    )
    this.setMode("Messages")
  }

  #curlMenu() {
    const commands = () => {
      const url = (query) => this.server.url(this.stream.path, query)
      const headers = { "Content-Type": this.state.contentType ?? "application/octet-stream" }
      const fork = { "Stream-Forked-From": this.server.serverPath(this.stream) }
      const forkUrl = this.server.url(this.server.stream(`${this.stream.name}-fork`).path)
      return {
        "Read from the start": this.server.curl("GET", url({ offset: "-1" })),
        "Follow the tail": this.server.curl("GET", url({ offset: "now", live: "sse" })),
        Metadata: this.server.curl("HEAD", url()),
        Append: this.server.curl("POST", url(), headers, isJson(headers["Content-Type"]) ? '{"hello":"world"}' : "hello"),
        Fork: this.server.curl("PUT", forkUrl, fork),
        Close: this.server.curl("POST", url(), { "Stream-Closed": "true" }),
        Delete: this.server.curl("DELETE", url()),
      }
    }
    const menu = h("div", { class: "menu", popover: "auto", id: "curl-menu" })
    menu.addEventListener("beforetoggle", (event) => {
      if (event.newState !== "open") return
      replace(
        menu,
        Object.entries(commands()).map(([name, command]) =>
          h(
            "button",
            { type: "button", on: { click: () => (menu.hidePopover(), copy(command, "the command")) } },
            h("span", {}, name),
            h("code", {}, command),
          ),
        ),
      )
    })
    const button = h(
      "button",
      { type: "button", class: "icon-button", popovertarget: "curl-menu", title: "Copy as curl", "aria-label": "Copy as curl" },
      icon("terminal"),
    )
    return [button, menu]
  }

  // -- which stream, and where in it -------------------------------------------------------

  /** Show a stream; null shows none. */
  async open(stream) {
    this.#stop()
    this.stream = stream
    this.state = {}
    this.#tail = this.#floor = null
    this.messages.clear(null)
    this.#reset()
    this.find.value = this.jump.value = ""
    this.#look()
    this.setMode("Messages")
    this.#say(null)
    if (stream === null) return
    this.#showTitle()
    this.#showState()
    this.composer.show(stream, "", true)
    this.#start(await this.#firstOffset(stream), stream)
  }

  /** Where to begin: the start, or the last messages of a stream that is long. */
  async #firstOffset(stream) {
    try {
      const head = await this.server.request("HEAD", stream.path)
      this.noteTail(head.headers.get("stream-next-offset"))
      this.state.contentType = head.headers.get("content-type")
      const tail = parseOffset(head.headers.get("stream-next-offset"))
      if (tail.bytes <= SHORT_BYTES || tail.messages <= FIRST_MESSAGES) return "-1"
      return await this.#seek(stream, tail.messages - FIRST_MESSAGES)
    } catch {
      return "-1" // the read itself will say what is wrong
    }
  }

  /** The offset of the message with this number. */
  async #seek(stream, number) {
    const start = this.#floor?.token ?? "-1"
    if (number <= (this.#floor?.messages ?? 0)) return start
    const asked = { stream: stream.name, from: start, max_messages: number - (this.#floor?.messages ?? 0) }
    const response = await this.server.request("POST", `${this.server.settings.streamRoot}/__ds/tails`, {
      body: JSON.stringify({ streams: [asked] }),
      headers: { "Content-Type": "application/json" },
    })
    return (await response.json()).streams[0].until_offset ?? start
  }

  #start(offset, stream = this.stream) {
    if (stream !== this.stream) return
    this.#stop()
    const abort = (this.#abort = new AbortController())
    this.state = { ...this.state, paused: false, problem: null }
    this.#showState()
    const current = (act) => (value) => {
      if (this.#abort === abort) act(value)
    }
    follow(this.server, stream, offset, abort.signal, {
      messages: current((batch) => this.messages.append(batch)),
      state: current((state) => {
        this.state = { ...this.state, ...state }
        if (state.next) this.noteTail(state.next)
        this.#showState()
      }),
      trimmed: current((earliest) => {
        this.messages.clear(parseOffset(earliest))
        this.#floor = parseOffset(earliest)
        this.#reset()
      }),
      gone: current((problem) => this.#gone(problem)),
      position: () => this.messages.next,
    })
  }

  #stop() {
    this.#abort?.abort()
    this.#abort = null
    this.state.live = false
  }

  #gone(problem) {
    this.#abort = null
    if (problem.type === "invalid-offset" && this.messages.length) {
      // The stream that this page was reading is another now: a server without a memory came back.
      this.messages.clear(null)
      this.#reset()
      toast("The stream began anew: reading it from the start")
      this.#start("-1")
      return
    }
    this.state = { ...this.state, live: false, problem }
    this.#showState()
    this.dispatchEvent(new Event("gone"))
  }

  get isLive() {
    return this.#abort !== null
  }

  toggleLive() {
    if (this.stream === null || this.state.closed) return
    if (this.isLive) {
      this.#stop()
      this.state.paused = true
      this.#showState()
    } else {
      this.#start(this.messages.next ?? "-1")
    }
  }

  jumpToStart() {
    this.#jump("-1")
  }

  jumpToEnd() {
    this.#stick = true
    if (!this.isLive && !this.state.closed && !this.state.problem) this.#start(this.messages.next ?? "-1")
    this.rows.scrollToEnd()
  }

  async #jumpTo(event) {
    event.preventDefault()
    const wanted = this.jump.value.trim()
    if (!wanted) return
    try {
      if (wanted === "-1") this.jumpToStart()
      else if (wanted === "now") this.jumpToEnd()
      else if (/^\d+$/.test(wanted)) await this.#jump(null, Number(wanted))
      else await this.#jump(wanted, parseOffset(wanted).messages)
    } catch (error) {
      toast(error.message, "error")
    }
  }

  /** Show the message at an offset: in what is held, or by reading on from there. */
  async #jump(offset, number = 0) {
    this.#clearSearch()
    const { messages } = this
    this.#stick = false
    const first = messages.first?.messages ?? 0
    if (offset === "-1" && (first === 0 || first === this.#floor?.messages)) {
      this.rows.scrollTo(0, "start")
      return
    }
    if (offset !== "-1" && messages.first && number >= first && number <= first + messages.length) {
      const index = Math.min(number - first, messages.length - 1)
      if (offset && number < first + messages.length && messages.offset(index) !== offset) {
        throw new Error("There is no message boundary at this offset.")
      }
      this.#go(index, "start")
      return
    }
    const earliest = this.#floor?.token ?? "-1"
    const start = offset === "-1" ? earliest : (offset ?? (await this.#seek(this.stream, number)))
    await readFrame(this.server, this.stream, start, undefined, { max_messages: 1 }) // refused before anything is lost
    messages.clear(null)
    this.#reset()
    this.#stick = false
    this.scroller.scrollTop = 0
    this.#start(start)
  }

  async #loadEarlier() {
    const { stream, messages } = this
    const end = messages.first.messages
    this.earlier.disabled = true
    try {
      const until = messages.offset(0)
      const loaded = { start: null, messages: [] }
      let at = await this.#seek(stream, Math.max(0, end - FIRST_MESSAGES))
      while (at !== until) {
        const frame = await readFrame(this.server, stream, at, undefined, { until })
        loaded.start ??= frame.start
        loaded.messages.push(...frame.messages)
        at = frame.next
      }
      if (stream === this.stream && loaded.start) messages.prepend(loaded)
    } catch (error) {
      toast(error.message, "error")
    } finally {
      this.earlier.disabled = false
      this.#showEdges()
    }
  }

  /** The tail moved on: seen by this view, or by whoever asked the server. */
  noteTail(token, earliest = null) {
    const tail = parseOffset(token)
    if (earliest) this.#floor = parseOffset(earliest)
    if (this.#tail === null || tail.messages >= this.#tail.messages) this.#tail = tail
    this.dispatchEvent(new Event("tail"))
    if (!this.isLive) this.#showState()
  }

  get tail() {
    return this.#tail
  }

  noteClosed(closed) {
    if (closed && !this.state.closed && !this.isLive) {
      this.state.closed = this.state.paused ? this.state.closed : true
      this.#showState()
    }
  }

  fork(offset) {
    forkDialog(this.server, this.stream, offset ?? this.messages.next, (fork) => this.goTo(fork))
  }

  // -- what is shown -----------------------------------------------------------------------

  setMode(mode) {
    this.mode = mode
    this.modes.forEach((tab) => tab.setAttribute("aria-pressed", String(tab.textContent === mode)))
    this.element.dataset.mode = mode
    this.table.show(mode === "State")
  }

  #showTitle() {
    const parts = this.stream.name.split("/")
    const leaf = parts.pop()
    replace(this.title, h("span", { class: "dim" }, parts.map((part) => `${part}/`).join("")), leaf)
    this.title.title = this.stream.name
    document.title = `${this.stream.name} · Headrace`
  }

  #showState() {
    if (this.stream === null) return
    const { state, server } = this
    const held = this.messages.length
    const behind = this.#tail && this.messages.next ? this.#tail.messages - parseOffset(this.messages.next).messages : 0
    let word = "loading"
    let text = "Reading …"
    if (state.problem) [word, text] = ["problem", "Stopped"]
    else if (state.closed) [word, text] = ["closed", "Closed"]
    else if (server.away) [word, text] = ["away", "Server away"]
    else if (state.paused) [word, text] = ["paused", behind > 0 ? `Paused · ${count(behind)} new` : "Paused"]
    else if (state.upToDate) [word, text] = ["on", "Live"]
    else if (held) text = `Reading … ${count(held)}`
    const action = { on: "pause", paused: "play", loading: "pause", away: "pause" }[word]
    this.liveButton.dataset.state = word
    this.liveButton.disabled = action === undefined
    this.liveButton.title = { on: "Pause (p)", paused: "Resume (p)" }[word] ?? text
    replace(this.liveButton, h("span", { class: "pulse" }), h("span", {}, text), action ? icon(action) : null)
    replace(
      this.badges,
      state.contentType ? h("span", { class: "badge" }, state.contentType) : null,
      state.closed ? h("span", { class: "badge closed" }, "closed") : null,
      this.#tail ? h("span", { class: "dim" }, `${plural(this.#tail.messages, "message")} · ${bytes(this.#tail.bytes)}`) : null,
    )
    this.composer.show(this.stream, state.contentType ?? "", Boolean(state.closed || state.problem) || !state.contentType)
    const readOnly = this.stream.isReadOnly
    for (const button of this.actions.querySelectorAll("[data-action]")) {
      button.disabled = readOnly || Boolean(state.problem) || (button.dataset.action === "Close stream" && Boolean(state.closed))
    }
    this.modes[1].hidden = Boolean(state.contentType) && !isJson(state.contentType)
    this.#say(state.problem ? state.problem.message : null)
    this.#showEdges()
  }

  #say(text) {
    this.notice.hidden = text === null
    replace(this.notice, text)
  }

  /** What lies before and after the messages in sight. */
  #showEdges() {
    const { messages, state } = this
    const before = messages.first ? messages.first.messages - (this.#floor?.messages ?? 0) : 0
    this.earlier.hidden = before <= 0 || this.#search !== null || messages.length === 0
    replace(this.earlier, `${plural(before, "earlier message")} · load more`)
    const searching = this.#search !== null
    this.empty.hidden = this.rows.count > 0 || Boolean(state.problem) || !(state.upToDate || searching)
    replace(this.empty, searching ? "No message holds this text." : "No messages yet. What is appended shows up here at once.")
    this.newer.hidden = this.#stick || this.rows.count === 0 || searching
    replace(
      this.found,
      searching ? `${count(this.#search.found.length)}${this.#search.finished ? "" : "…"} of ${count(messages.length)}` : "",
    )
  }

  /** Who scrolls to the end stays there; an empty list has no end to be at. */
  #scrolled() {
    if (this.rows.count) this.#stick = this.rows.atEnd
    this.newer.hidden = this.#stick || this.rows.count === 0 || this.#search !== null
  }

  // -- rows --------------------------------------------------------------------------------

  #reset() {
    this.#opened.clear()
    this.#active = 0
    this.#stick = true
    this.rows.reset()
    this.rows.count = this.messages.length
    this.#search?.stop()
    this.#search = null
    this.#showEdges()
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
    const top = this.scroller.scrollTop
    this.#opened.clear()
    this.rows.reset()
    this.rows.count = this.messages.length
    this.scroller.scrollTop = top + number * ROW_HEIGHT
    this.#active += number
  }

  #dropped(number) {
    const top = this.scroller.scrollTop
    this.#opened.clear()
    this.#clearSearch()
    this.rows.reset()
    this.rows.count = this.messages.length
    this.scroller.scrollTop = Math.max(0, top - number * ROW_HEIGHT)
    this.#active = Math.max(0, this.#active - number)
  }

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
        h("span", { class: "size" }, bytes(message.size)),
      ),
    )
    if (isOpen) this.#fill(row, index, message)
    return row
  }

  #toggle(index) {
    const message = this.messages.items[this.#messageAt(index)]
    const row = this.rows.element(index)
    this.#active = index
    if (this.#opened.has(message)) {
      this.#opened.get(message)?.disconnect()
      this.#opened.delete(message)
      row.querySelector(".opened")?.remove()
      this.rows.setHeight(index, ROW_HEIGHT)
    } else {
      this.#fill(row, index, message)
    }
    row.classList.toggle("open", this.#opened.has(message))
    row.querySelector(".message-line").setAttribute("aria-expanded", String(this.#opened.has(message)))
  }

  #fill(row, index, message) {
    const at = this.#messageAt(index)
    const offset = this.messages.offset(at)
    const forkable = !this.stream.isReadOnly
    row.append(
      opened({
        message,
        offset,
        json: isJson(this.state.contentType),
        needle: this.#search?.needle,
        actions: {
          curl: () => copy(this.server.curl("GET", this.server.url(this.stream.path, { offset })), "the command"),
          fork: forkable ? () => this.fork(offset) : null,
        },
      }),
    )
    let seen = this.#opened.has(message)
    const observer = new ResizeObserver(() => {
      if (!row.isConnected || !this.#opened.has(message)) return
      this.rows.setHeight(index, row.offsetHeight)
      if (!seen) row.scrollIntoView({ block: "nearest" })
      seen = true
    })
    observer.observe(row)
    this.#opened.set(message, observer)
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest(".opened")) return
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / ROW_HEIGHT) - 1)
    const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page }
    if (event.key in moves) this.#go(this.#active + moves[event.key])
    else if (event.key === "Home") this.#go(0)
    else if (event.key === "End") this.#go(this.rows.count - 1)
    else return
    event.preventDefault()
  }

  /** Put the keyboard on a row. */
  #go(to, where = "nearest") {
    if (!this.rows.count) return
    this.#active = Math.max(0, Math.min(this.rows.count - 1, to))
    this.rows.scrollTo(this.#active, where)
    const line = this.rows.element(this.#active)?.querySelector(".message-line")
    line?.focus({ preventScroll: true })
  }

  // -- search ------------------------------------------------------------------------------

  #look() {
    const needle = this.find.value.trim().toLowerCase()
    this.#search?.stop()
    this.#search = null
    this.#opened.clear()
    if (needle) this.#search = new Search(this.messages, needle, () => this.#lookedOn())
    this.#active = 0
    this.rows.reset()
    this.rows.count = this.#search ? this.#search.found.length : this.messages.length
    if (!needle && this.#stick) this.rows.scrollToEnd()
    this.#showEdges()
  }

  #lookedOn() {
    if (!this.#search) return
    this.rows.count = this.#search.found.length
    this.#showEdges()
  }

  #clearSearch() {
    if (!this.find.value) return
    this.find.value = ""
    this.#look()
  }

  #findKey(event) {
    if (event.key === "Escape") {
      this.find.value = ""
      this.#look()
      this.find.blur()
    } else if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault()
      this.#go(0)
    }
  }

  /** The message with this number, in the list and opened. */
  async showMessage(number) {
    this.setMode("Messages")
    await this.#jump(null, number)
    const index = number - this.messages.first.messages
    if (!this.#opened.has(this.messages.items[index])) this.#toggle(index)
  }

  focusSearch() {
    this.find.focus()
    this.find.select()
  }
}
