// The append box: what is typed is checked before it is sent.

import { copy, h, icon, replace, toast } from "./dom.js"
import { bytes, plural, utf8Length } from "./format.js"
import { checkJson } from "./dialogs.js"
import { isJson, isText } from "./stream-reader.js"

export class Composer {
  constructor(server) {
    this.server = server
    this.stream = null
    this.contentType = ""
    this.text = h("textarea", {
      rows: "1",
      spellcheck: "false",
      "aria-label": "Message to append",
      on: { input: () => this.#check(), keydown: (event) => this.#key(event) },
    })
    this.verdict = h("span", { class: "verdict", role: "status" })
    this.send = h("button", { type: "submit", class: "primary", disabled: true, title: "Ctrl+Enter" }, "Append")
    this.element = h(
      "form",
      { class: "composer", "aria-label": "Append", on: { submit: (event) => this.#submit(event) } },
      this.text,
      h(
        "div",
        { class: "composer-foot" },
        this.verdict,
        h("span", { class: "grow" }),
        h("button", { type: "button", class: "quiet", title: "Copy as curl", on: { click: () => this.#copy() } }, icon("terminal"), "curl"),
        this.send,
      ),
    )
  }

  show(stream, contentType, closed) {
    const changed = stream !== this.stream || contentType !== this.contentType
    this.stream = stream
    this.contentType = contentType
    this.element.hidden = closed || stream === null || stream.isReadOnly
    if (changed) {
      this.text.value = ""
      this.text.placeholder = placeholder(contentType)
      this.#check()
    }
  }

  focus() {
    this.text.focus()
  }

  /** The body to send; throws a sentence where it is not one. */
  #body() {
    const text = this.text.value
    if (isJson(this.contentType)) {
      return { body: text, said: plural(checkJson(text), "message") }
    }
    if (isText(this.contentType)) return { body: text, said: bytes(utf8Length(text)) }
    const data = parseBytes(text)
    return { body: data, said: bytes(data.length) }
  }

  #check() {
    const { text } = this
    text.style.height = "auto"
    text.style.height = `${Math.min(text.scrollHeight + 2, 220)}px`
    let said = ""
    let wrong = false
    if (text.value) {
      try {
        said = this.#body().said
      } catch (error) {
        said = error.message
        wrong = true
      }
    }
    text.setAttribute("aria-invalid", String(wrong))
    this.verdict.classList.toggle("wrong", wrong)
    this.send.disabled = wrong || !text.value
    replace(this.verdict, said)
  }

  #key(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault()
      this.element.requestSubmit()
    } else if (event.key === "Escape") {
      this.text.blur()
    }
  }

  async #submit(event) {
    event.preventDefault()
    if (this.send.disabled) return
    const { stream } = this
    const headers = { "Content-Type": this.contentType }
    this.send.disabled = true
    try {
      await this.server.request("POST", stream.path, { headers, body: this.#body().body })
      this.text.value = ""
    } catch (error) {
      toast(error.message, "error")
    }
    this.#check()
  }

  async #copy() {
    const url = this.server.url(this.stream.path)
    try {
      const { body } = this.#body()
      await copy(this.server.curl("POST", url, { "Content-Type": this.contentType }, body), "the command")
    } catch (error) {
      toast(error.message, "error")
    }
  }
}

function placeholder(contentType) {
  if (isJson(contentType)) return 'Append JSON: {"hello": "world"}, or an array of messages'
  return isText(contentType) ? "Append text" : "Append bytes as hex: 68 65 6c 6c 6f"
}

function parseBytes(text) {
  const digits = text.replace(/\s+/g, "")
  if (!/^[0-9a-fA-F]*$/.test(digits)) throw new Error("Bytes are written as pairs of hex digits.")
  if (digits.length % 2) throw new Error("A hex digit is missing.")
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16))
}
