// What an empty server shows: a button that makes the first stream, and the commands that do the
// same from a shell.

import { copy, h, iconButton, replace } from "./dom.js"

const EXAMPLE = "hello"
const TYPE = { "Content-Type": "application/json" }

export class FirstSteps {
  /** Shown while `catalogue` knows of no stream; `create` asks for one. */
  constructor(server, catalogue, create) {
    this.server = server
    this.catalogue = catalogue
    this.commands = h("div", { class: "commands" })
    this.element = h(
      "section",
      { class: "first-steps", "aria-label": "First steps", hidden: true },
      h("h2", {}, "No streams yet"),
      h("p", {}, "A stream is an append-only log with a URL: create it with PUT, append with POST, read it with GET, live or from any offset."),
      h("button", { type: "button", class: "primary", on: { click: create } }, "Create a stream"),
      h("p", { class: "dim" }, "Or from a shell:"),
      this.commands,
    )
    catalogue.addEventListener("change", () => this.show())
    server.addEventListener("token", () => this.show())
  }

  show() {
    const isEmpty = this.catalogue.complete && this.catalogue.entries.size === 0 && !this.catalogue.failure
    this.element.hidden = !isEmpty
    if (!isEmpty) return
    const { server } = this
    const url = (query) => server.url(server.stream(EXAMPLE).path, query)
    replace(
      this.commands,
      command("Create a stream with a first message", server.curl("PUT", url(), TYPE, '{"hello":"world"}')),
      command("Append to it", server.curl("POST", url(), TYPE, '{"and":"again"}')),
      command("Follow it", server.curl("GET", url({ offset: "-1", live: "sse" }))),
    )
  }
}

const command = (what, text) =>
  h(
    "div",
    { class: "command" },
    h("small", { class: "dim" }, what),
    h("code", { tabindex: "0", role: "group", "aria-label": what }, text),
    iconButton("copy", `Copy: ${what}`, () => copy(text, "the command")),
  )
