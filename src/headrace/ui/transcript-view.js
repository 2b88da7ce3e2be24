// The transcript: a conversation as turns, the latest at the end. All content is shown as text:
// nothing in a message becomes markup, a link or an image.

import { h, icon, replace } from "./dom.js"
import { count, indentJson, paintJson, plural } from "./format.js"
import { Transcript } from "./transcript-fold.js"
import { rest } from "./chunked-work.js"
import { textOf } from "./messages.js"

const SLICE_MS = 8
const SHOWN_TURNS = 200
const SHOWN_PARTS = 200 // of one turn: it is drawn anew with each of its messages
const SHOWN_CHARS = 100_000
const PAINTED_CHARS = 20_000 // colours cost an element per token
const NEAR_END_PX = 40
const ROLES = new Set(["user", "assistant", "system", "developer", "tool", "text"])
const FENCE = /```([^\n`]*)\n([\s\S]*?)(?:\n?```|$)/g

export class TranscriptView extends EventTarget {
  #transcript = new Transcript()
  #done = 0
  #running = false
  #shown = false
  #limit = SHOWN_TURNS
  #elements = new Map() // turn -> element
  #scheduled = false
  #stick = true // whether the end is followed
  #plain = false

  constructor(messages) {
    super()
    this.messages = messages
    this.note = h("p", { class: "dim", role: "status" })
    this.earlier = h("button", { type: "button", class: "earlier", hidden: true, on: { click: () => this.#showMore() } })
    this.list = h("ol", { class: "turns", "aria-label": "Transcript" })
    this.scroller = h("div", { class: "transcript-body", tabindex: "0", role: "region", "aria-label": "Transcript" }, this.earlier, this.list)
    this.element = h("div", { class: "transcript" }, h("div", { class: "transcript-tools" }, this.note), this.scroller)
    // Who scrolls to the end stays there; who opens something there wants to read it.
    this.scroller.addEventListener("scroll", () => this.#look(), { passive: true })
    this.list.addEventListener("toggle", () => this.#look(), { capture: true })
    new ResizeObserver(() => this.#stick && this.scrollToEnd()).observe(this.scroller)
    messages.addEventListener("append", () => this.#go())
    for (const type of ["reset", "prepend", "drop"]) messages.addEventListener(type, () => this.#restart())
  }

  show(shown) {
    this.#shown = shown
    if (shown) {
      this.#go()
      this.scrollToEnd()
    }
  }

  /** Whether bare text counts, as in a stream of tokens. */
  set plain(plain) {
    if (plain === this.#plain) return
    this.#plain = plain
    this.#restart()
  }

  scrollToEnd() {
    this.#stick = true
    this.scroller.scrollTop = this.scroller.scrollHeight
  }

  #look() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller
    this.#stick = scrollTop + clientHeight >= scrollHeight - NEAR_END_PX
  }

  #restart() {
    this.#transcript = new Transcript({ plain: this.#plain })
    this.#done = 0
    this.#limit = SHOWN_TURNS
    this.#stick = true
    this.#elements.clear()
    replace(this.list)
    this.#go()
  }

  /** Take in what is new, a few milliseconds at a time; nothing is done while nobody looks. */
  async #go() {
    if (this.#running || !this.#shown) return
    this.#running = true
    while (this.#shown && this.#done < this.messages.length) {
      const until = performance.now() + SLICE_MS
      const { items } = this.messages
      while (this.#done < items.length && performance.now() < until) {
        this.#transcript.apply(textOf(items[this.#done]), this.messages.number(this.#done))
        this.#done += 1
      }
      this.#schedule()
      await rest()
    }
    this.#running = false
    this.#schedule()
  }

  #schedule() {
    if (this.#scheduled) return
    this.#scheduled = true
    requestAnimationFrame(() => {
      this.#scheduled = false
      if (this.#shown) this.#draw()
    })
  }

  #draw() {
    const { list } = this
    const { turns, changed, ignored } = this.#transcript
    const said = turns.filter((turn) => turn.parts.length)
    const shown = said.slice(-this.#limit)
    const wanted = new Set(shown)
    for (const [turn, element] of this.#elements) {
      if (wanted.has(turn) && !changed.has(turn)) continue
      if (wanted.has(turn)) {
        exchange(element, this.#make(turn))
      } else {
        element.remove()
        this.#elements.delete(turn)
      }
    }
    changed.clear()
    shown.forEach((turn, at) => {
      const element = this.#elements.get(turn) ?? this.#make(turn)
      if (list.children[at] !== element) list.insertBefore(element, list.children[at] ?? null)
    })
    const before = said.length - shown.length
    this.earlier.hidden = before === 0
    replace(this.earlier, `${plural(before, "earlier turn")} · show more`)
    this.#showNote(said.length, ignored)
    if (this.#stick) this.scrollToEnd()
  }

  #showNote(turns, ignored) {
    const first = this.messages.first?.messages ?? 0
    const nothing = this.messages.length > 0 && turns === 0
    const parts = [
      nothing ? "No chat or agent messages are recognised here." : plural(turns, "turn"),
      first ? `from message ${count(first)} on: what came before is not in it` : null,
      ignored ? `${plural(ignored, "message")} not part of it` : null,
    ]
    replace(this.note, parts.filter(Boolean).join(" · "))
  }

  #showMore() {
    const { scroller } = this
    const fromEnd = scroller.scrollHeight - scroller.scrollTop
    this.#limit += SHOWN_TURNS
    this.#draw()
    scroller.scrollTop = scroller.scrollHeight - fromEnd
  }

  #make(turn) {
    const role = ROLES.has(turn.role) ? turn.role : "other"
    const label = turn.from === turn.to ? `#${count(turn.from)}` : `#${count(turn.from)}–${count(turn.to)}`
    const before = turn.parts.length - SHOWN_PARTS
    const open = () => this.dispatchEvent(new CustomEvent("message", { detail: turn.from }))
    const element = h(
      "li",
      { class: `turn ${role}`, data: { role: turn.role } },
      h(
        "div",
        { class: "turn-head" },
        h("b", { class: "role" }, turn.role),
        h("button", { type: "button", class: "link", title: "Show the first message of this turn", on: { click: open } }, label),
      ),
      h("div", { class: "turn-body" }, before > 0 ? h("p", { class: "dim" }, `${plural(before, "earlier part")} …`) : null, turn.parts.slice(-SHOWN_PARTS).map(show), turn.done || turn.role === "text" ? null : h("span", { class: "caret", title: "not finished" })),
    )
    this.#elements.set(turn, element)
    return element
  }
}

/** A turn drawn anew in place of what it was; the keyboard stays where it is. */
function exchange(before, after) {
  const stops = (element) => [...element.querySelectorAll("button, summary, pre")]
  const focused = stops(before).indexOf(document.activeElement)
  before.replaceWith(after)
  if (focused >= 0) stops(after)[focused]?.focus({ preventScroll: true })
}

function show(part) {
  if (part.kind === "text") return said(part.text)
  if (part.kind === "reasoning") return fold(part, "reasoning", [h("span", {}, "Reasoning")], [h("div", { class: "said dim" }, clip(part.text))])
  if (part.kind === "tool") return tool(part)
  if (part.kind === "result") return fold(part, "tool", [icon("tool"), h("span", {}, "Result of a call")], [value("Output", part.output)])
  if (part.kind === "error") return h("p", { class: "problem" }, part.text)
  if (part.kind === "file") return h("p", { class: "attachment" }, h("b", {}, part.name || part.mediaType || "file"), h("code", {}, part.url))
  return fold(part, "tool", [h("span", {}, part.name)], [value("Data", part.value)])
}

/** Text, with fenced parts set as code. */
function said(text) {
  const shown = clip(text)
  const parts = []
  let at = 0
  for (const found of shown.matchAll(FENCE)) {
    parts.push(shown.slice(at, found.index).replace(/\n$/, ""), h("pre", { class: "code", tabindex: "0", "aria-label": found[1].trim() || "code" }, found[2]))
    at = found.index + found[0].length
  }
  parts.push(at ? shown.slice(at).replace(/^\n/, "") : shown)
  return h("div", { class: "said" }, parts)
}

const clip = (text) => (text.length > SHOWN_CHARS ? `${text.slice(0, SHOWN_CHARS)} … ${count(text.length - SHOWN_CHARS)} more characters` : text)

const STATES = { input: "input …", called: "called", done: "done", failed: "failed" }

function tool(part) {
  const head = [icon("tool"), h("code", {}, part.name), h("span", { class: `badge tool-state ${part.state === "failed" ? "failed" : ""}` }, STATES[part.state] ?? part.state)]
  return fold(part, "tool", head, [
    part.input === null ? null : value("Input", part.input),
    part.output === null ? null : value("Output", part.output),
    part.failure === null ? null : value("Error", part.failure),
  ])
}

/** Something folded away; it stays as it is when its turn is drawn anew. */
function fold(part, kind, head, body) {
  const remember = (event) => (part.isOpen = event.target.open)
  return h("details", { class: `part ${kind}`, open: part.isOpen, on: { toggle: remember } }, h("summary", {}, head), h("div", { class: "part-body" }, body))
}

function value(name, text) {
  const laid = /^\s*[{["]/.test(text) && isJson(text) ? indentJson(text, SHOWN_CHARS).text : clip(text)
  const shown = laid.length <= PAINTED_CHARS && laid !== text ? paintJson(laid) : [laid]
  return h("div", { class: "tool-value" }, h("small", { class: "dim" }, name), h("pre", { class: "payload", tabindex: "0", "aria-label": name }, shown))
}

function isJson(text) {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}
