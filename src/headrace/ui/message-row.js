// One message: a line of it in the list, and all of it once it is opened.

import { copy, h, icon } from "./dom.js"
import { bytes, count, decodeUtf8, hexDump, hexPreview, indentJson, markText, paintJson } from "./format.js"
import { bytesOf, textOf } from "./messages.js"

const PREVIEW_CHARS = 400
const SHOWN_CHARS = 100_000
const SHOWN_BYTES = 32 * 1024
const MARKED_CHARS = 20_000 // colours cost an element per token

/** The first line that says something, on one line. */
export function preview(message, needle) {
  if (typeof message.data !== "string") {
    const text = decodeUtf8(message.data.subarray(0, 256))
    const readable = text !== null && /^[\x20-\x7e\s]*$/.test(text)
    return readable ? [oneLine(text)] : [hexPreview(message.data)]
  }
  const start = needle ? Math.max(0, message.data.toLowerCase().indexOf(needle) - 80) : 0
  const text = (start ? "… " : "") + oneLine(message.data.slice(start, start + PREVIEW_CHARS))
  return needle ? markText(text, needle) : [text]
}

const oneLine = (text) => text.replace(/\s+/g, " ")

/** The ways to look at a message: those that make sense for it, the best one first. */
function waysOf(message, json) {
  if (typeof message.data !== "string") return decodeUtf8(message.data) === null ? ["Hex"] : ["Hex", "Text"]
  return json ? ["JSON", "Text", "Hex"] : ["Text", "Hex"]
}

/** The whole message, with what can be done from it. */
export function opened({ message, offset, json, needle, actions }) {
  const ways = waysOf(message, json)
  const body = h("pre", { class: "payload", tabindex: "0", "aria-label": `Message at ${offset}` })
  const tabs = ways.map((way) =>
    h("button", { type: "button", class: "tab", "aria-pressed": "false", on: { click: () => choose(way) } }, way),
  )
  function choose(way) {
    tabs.forEach((tab, i) => tab.setAttribute("aria-pressed", String(ways[i] === way)))
    body.replaceChildren(...show(message, way, needle))
  }
  choose(ways[0])
  return h(
    "div",
    { class: "opened" },
    h(
      "div",
      { class: "opened-tools" },
      h("div", { class: "segments", role: "group", "aria-label": "Show as" }, tabs),
      h("button", { type: "button", class: "quiet mono offset", title: "Copy this offset", on: { click: () => copy(offset, "the offset") } }, offset, icon("copy")),
      h("span", { class: "dim" }, bytes(message.size)),
      h("span", { class: "dim written-by" }),
      h("span", { class: "grow" }),
      h("button", { type: "button", class: "quiet", on: { click: () => copy(textOf(message), "the message") } }, "Copy"),
      h("button", { type: "button", class: "quiet", on: { click: actions.curl } }, "curl"),
      actions.fork ? h("button", { type: "button", class: "quiet", on: { click: actions.fork } }, icon("fork"), "Fork from here") : null,
    ),
    body,
  )
}

function show(message, way, needle) {
  if (way === "Hex") {
    const data = bytesOf(message)
    return withRest(hexDump(data, SHOWN_BYTES), data.length - SHOWN_BYTES, "bytes")
  }
  const text = textOf(message)
  if (way === "JSON") {
    const laid = indentJson(text, SHOWN_CHARS)
    const parts = needle ? markText(laid.text, needle) : laid.text.length <= MARKED_CHARS ? paintJson(laid.text) : [laid.text]
    return laid.whole ? parts : [...parts, rest("the rest is not shown; see Text, or copy it")]
  }
  const shown = text.slice(0, SHOWN_CHARS)
  const parts = needle ? markText(shown, needle) : [shown]
  return text.length > shown.length ? [...parts, rest(`${count(text.length - shown.length)} more characters`)] : parts
}

const withRest = (text, left, what) => (left > 0 ? [text, rest(`${count(left)} more ${what}`)] : [text])
const rest = (text) => h("span", { class: "rest" }, `\n… ${text}`)
