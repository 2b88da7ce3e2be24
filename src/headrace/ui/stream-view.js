// The middle: one stream's messages, newest at the end, live until paused.

import { copy, h, icon, iconButton, replace, toast } from "./dom.js"
import { bytes, count, plural } from "./format.js"
import { Composer } from "./composer.js"
import { curlMenu } from "./curl-menu.js"
import { bucketDialog, closeDialog, createDialog, deleteDialog, forkDialog } from "./dialogs.js"
import { MessageList } from "./message-list.js"
import { Messages, textOf } from "./messages.js"
import { follow, isJson, isText, parseOffset, readFrame } from "./stream-reader.js"
import { firstOffset, readBefore, seek } from "./seek.js"
import { StateTable } from "./state-view.js"
import { isTranscript } from "./transcript-fold.js"
import { TranscriptView } from "./transcript-view.js"
import { Writers } from "./writers.js"

const MODES = ["Messages", "State", "Transcript"]
const PROBED = 50 // messages that tell whether a stream is a conversation

export class StreamView extends EventTarget {
  #abort = null
  #tail = null
  #floor = null
  #isProbed = false // whether it is settled that the stream is a conversation, or is none
  #chosen = false // whether the reader of this stream has chosen a view
  #prefersMessages = false // whether a transcript was left for the messages, in this page

  constructor(server, { back, details, goTo }) {
    super()
    this.server = server
    this.goTo = goTo
    this.stream = null
    this.state = {}
    this.messages = new Messages()
    this.composer = new Composer(server)
    this.table = new StateTable(server, this.messages)
    this.transcript = new TranscriptView(this.messages)
    this.writers = new Writers(server, this.messages)
    this.list = new MessageList(this.messages, this.writers, {
      about: (offset) => this.#about(offset),
      loadEarlier: () => this.#loadEarlier(),
      toEnd: () => this.jumpToEnd(),
    })
    this.#build(back, details)
    this.messages.addEventListener("append", () => this.#recognise())
    for (const view of [this.table, this.transcript]) view.addEventListener("message", ({ detail }) => this.showMessage(detail))
    server.addEventListener("presence", () => this.#showState())
  }

  // -- the page's part ---------------------------------------------------------------------

  #build(back, details) {
    this.title = h("h1", { class: "stream-name" })
    this.badges = h("div", { class: "badges" })
    this.liveButton = h("button", { type: "button", class: "live", on: { click: () => this.toggleLive() } })
    this.jump = h("input", {
      class: "mono jump",
      placeholder: "offset or number",
      "aria-label": "Jump to an offset or a message number",
      autocomplete: "off",
      spellcheck: "false",
    })
    this.notice = h("div", { class: "notice", role: "status", hidden: true })
    this.modes = MODES.map((mode) =>
      h("button", { type: "button", class: "tab", "aria-pressed": "false", on: { click: () => this.#chooseMode(mode) } }, mode),
    )
    const actions = [
      ["fork", "Fork", "Fork", () => this.fork(null)],
      ["lock", "Close", "Close stream", () => closeDialog(this.server, this.stream)],
      ["trash", "Delete", "Delete stream", () => deleteDialog(this.server, this.stream, () => this.goTo(null))],
    ]
    const action = ([name, word, label, act]) =>
      h("button", { type: "button", class: "quiet", title: label, "aria-label": label, data: { action: label }, on: { click: () => (this.actionSet.matches(":popover-open") && this.actionSet.hidePopover(), act()) } }, icon(name), word)
    // On a phone a menu; where there is room its style shows it as it is.
    this.actionSet = h("div", { class: "action-set", popover: "auto", id: "stream-actions" }, actions.map(action))
    this.actions = h(
      "div",
      { class: "actions" },
      iconButton("more", "Actions", null, { class: "icon-button only-phone", popovertarget: "stream-actions" }),
      this.actionSet,
      iconButton("search", "Search and jump", () => this.#toggleFinders(), { class: "icon-button only-phone find-toggle", "aria-expanded": "false" }),
      curlMenu(this.server, () => [this.stream, this.state.contentType, this.messages.next]),
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
        this.list.searchBox,
        this.list.findProblem,
      ),
      this.notice,
      this.list.element,
      this.table.element,
      this.transcript.element,
      this.composer.element,
    )
    this.setMode("Messages")
  }

  // -- which stream, and where in it -------------------------------------------------------

  /** Show a stream; null shows none. */
  async open(stream) {
    this.#stop()
    this.stream = stream
    this.state = {}
    this.#tail = this.#floor = null
    this.messages.clear(null)
    this.writers.open(stream)
    this.table.open(stream)
    this.list.reset()
    this.jump.value = ""
    this.#chosen = this.#isProbed = false
    this.setMode("Messages")
    this.#say(null)
    if (stream === null) return
    this.#showTitle()
    this.#showState()
    this.composer.show(stream, "", true)
    this.#start(await this.#firstOffset(stream), stream)
  }

  async #firstOffset(stream) {
    try {
      const head = await this.server.request("HEAD", stream.path)
      this.noteTail(head.headers.get("stream-next-offset"))
      this.state.contentType = head.headers.get("content-type")
      return await firstOffset(this.server, stream, parseOffset(head.headers.get("stream-next-offset")))
    } catch {
      return "-1" // the read itself will say what is wrong
    }
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
        this.list.reset()
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
      this.list.reset()
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
    this.#toMessages()
    this.#jump("-1")
  }

  jumpToEnd() {
    if (this.mode === "Transcript") this.transcript.scrollToEnd()
    if (!this.isLive && !this.state.closed && !this.state.problem) this.#start(this.messages.next ?? "-1")
    this.list.scrollToEnd()
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
    const { messages, list } = this
    list.clearSearch()
    list.hold()
    const first = messages.first?.messages ?? 0
    if (offset === "-1" && (first === 0 || first === this.#floor?.messages)) {
      list.scrollToStart()
      return
    }
    if (offset !== "-1" && messages.first && number >= first && number <= first + messages.length) {
      const index = Math.min(number - first, messages.length - 1)
      if (offset && number < first + messages.length && messages.offset(index) !== offset) {
        throw new Error("There is no message boundary at this offset.")
      }
      list.go(index, "start")
      return
    }
    if (offset === null) await this.#refuseBeyondEnd(number)
    const earliest = this.#floor?.token ?? "-1"
    const start = offset === "-1" ? earliest : (offset ?? (await seek(this.server, this.stream, this.#floor, number)))
    await readFrame(this.server, this.stream, start, undefined, { max_messages: 1 }) // refused before anything is lost
    messages.clear(null)
    list.reset()
    list.scrollToStart()
    this.#start(start)
  }

  /** A number that no message has yet is refused, and what is shown stays. */
  async #refuseBeyondEnd(number) {
    if (number > (this.#tail?.messages ?? 0)) {
      const head = await this.server.request("HEAD", this.stream.path)
      this.noteTail(head.headers.get("stream-next-offset"))
    }
    const { messages } = this.#tail
    if (number <= messages) return
    const last = messages ? `the last message is number ${count(messages - 1)}` : "it has no messages yet"
    throw new Error(`${count(number)} is beyond the end of the stream: ${last}.`)
  }

  async #loadEarlier() {
    const { stream, messages, list } = this
    list.earlier.disabled = true
    try {
      const loaded = await readBefore(this.server, stream, this.#floor, messages.offset(0))
      if (stream === this.stream && loaded.start) messages.prepend(loaded)
    } catch (error) {
      toast(error.message, "error")
    } finally {
      list.earlier.disabled = false
      this.#showEdges()
    }
  }

  /** The tail moved on: this view has seen it, or the details have asked the server. */
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
    this.transcript.show(mode === "Transcript")
  }

  #chooseMode(mode) {
    this.#chosen = true
    if (this.mode === "Transcript") this.#prefersMessages = true
    else if (mode === "Transcript") this.#prefersMessages = false
    this.setMode(mode)
  }

  /** What only the list of messages can show. */
  #toMessages() {
    this.#chosen = true
    this.setMode("Messages")
  }

  /** The next of the views that this stream has. */
  nextMode() {
    const there = MODES.filter((_, at) => !this.modes[at].hidden)
    this.#chooseMode(there[(there.indexOf(this.mode) + 1) % there.length])
  }

  /** A stream that begins as a conversation is shown as one, unless its reader prefers otherwise. */
  #recognise() {
    const { messages } = this
    if (this.#chosen || this.#prefersMessages || this.mode !== "Messages" || !isText(this.state.contentType)) return
    if (!this.#isProbed && messages.length && isTranscript(messages.items.slice(0, PROBED).map(textOf))) this.setMode("Transcript")
    this.#isProbed = messages.length >= PROBED
  }

  #toggleFinders() {
    const shown = this.element.classList.toggle("finding")
    this.element.querySelector(".find-toggle").setAttribute("aria-expanded", String(shown))
    if (shown) this.list.focusSearch()
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
    this.modes[2].hidden = Boolean(state.contentType) && !isText(state.contentType)
    this.transcript.plain = Boolean(state.contentType) && !isJson(state.contentType)
    this.#say(state.problem ? state.problem.message : null, this.#remedy())
    this.#showEdges()
  }

  #say(text, remedy = null) {
    this.notice.hidden = text === null
    replace(this.notice, h("span", {}, text), remedy)
  }

  /** What makes a stream that is missing; null where nothing is. */
  #remedy() {
    const { server, stream, state } = this
    const button = (label, act) => h("button", { type: "button", class: "primary", on: { click: act } }, label)
    if (state.problem?.type === "stream-not-found") {
      return button("Create this stream", () => createDialog(server, stream.name, (made) => this.goTo(made)))
    }
    if (state.problem?.type !== "bucket-not-found") return null
    const bucket = stream.name.split("/")[1]
    return button(`Create the bucket ${bucket}`, () => bucketDialog(server, bucket, () => this.goTo(stream)))
  }

  #showEdges() {
    const { messages, state } = this
    const before = messages.first ? messages.first.messages - (this.#floor?.messages ?? 0) : 0
    this.list.showEdges(before, Boolean(state.upToDate) && !state.problem)
  }

  /** What an opened message needs besides itself. */
  #about(offset) {
    const { server, stream } = this
    return {
      json: isJson(this.state.contentType),
      actions: {
        curl: () => copy(server.curl("GET", server.url(stream.path, { offset })), "the command"),
        fork: stream.isReadOnly ? null : () => this.fork(offset),
      },
    }
  }

  /** The message with this number, in the list and opened. */
  async showMessage(number) {
    this.#toMessages()
    await this.#jump(null, number)
    this.list.openAt(number - this.messages.first.messages)
  }

  focusSearch() {
    this.#toMessages()
    if (!this.list.find.checkVisibility()) this.#toggleFinders()
    this.list.focusSearch()
  }
}
