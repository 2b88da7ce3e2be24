// Questions and forms in front of the page. Each one that sends something can be copied as curl.

import { copy, h, icon, replace, toast } from "./dom.js"
import { isJson } from "./stream-reader.js"

const TYPES = ["application/json", "text/plain", "application/octet-stream", "text/markdown", "application/x-ndjson"]

/** A dialog with a form. `request()` says what it would send; `send` sends it. */
export function formDialog({ title, intro, fields, submit, danger = false, request, send }) {
  const problem = h("p", { class: "problem", role: "alert" })
  const dialog = h(
    "dialog",
    { class: "sheet", "aria-label": title },
    h(
      "form",
      { method: "dialog", novalidate: true },
      h("header", {}, h("h2", {}, title), closeButton(() => dialog.close())),
      h("div", { class: "sheet-body" }, intro ? h("p", { class: "intro" }, intro) : null, fields, problem),
      h(
        "footer",
        {},
        request ? h("button", { type: "button", class: "quiet curl", on: { click: copyCurl } }, icon("terminal"), "Copy as curl") : null,
        h("span", { class: "grow" }),
        h("button", { type: "button", class: "quiet cancel", on: { click: () => dialog.close() } }, "Cancel"),
        h("button", { type: "submit", class: danger ? "danger" : "primary" }, submit),
      ),
    ),
  )
  async function copyCurl() {
    try {
      await copy(request(), "the command")
    } catch (error) {
      replace(problem, error.message)
    }
  }
  dialog.addEventListener("close", () => dialog.remove())
  dialog.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault()
    replace(problem)
    const button = dialog.querySelector("[type=submit]")
    button.disabled = true
    try {
      await send()
      dialog.close("sent")
    } catch (error) {
      replace(problem, error.message)
    } finally {
      button.disabled = false
    }
  })
  document.body.append(dialog)
  dialog.showModal()
  focusFirst(dialog)
  return dialog
}

/** The keyboard begins at the end of the first field; a question without one begins at the safe answer. */
function focusFirst(dialog) {
  const first = dialog.querySelector(".sheet-body :is(input, textarea, select)") ?? dialog.querySelector(".cancel")
  first.focus()
  first.setSelectionRange?.(first.value.length, first.value.length)
}

const closeButton = (close) =>
  h("button", { type: "button", class: "icon-button", "aria-label": "Close", title: "Close", on: { click: close } }, icon("close"))

export const field = (label, control, hint = null) =>
  h("label", { class: "field" }, h("span", {}, label), control, hint ? h("small", {}, hint) : null)

/** Something to look at, and the command that gets it. */
export function sheet(title, content, command) {
  const dialog = h(
    "dialog",
    { class: "sheet wide", "aria-label": title },
    h("header", {}, h("h2", {}, title), closeButton(() => dialog.close())),
    h("div", { class: "sheet-body" }, content),
    h("footer", {}, h("button", { type: "button", class: "quiet", on: { click: () => copy(command, "the command") } }, icon("terminal"), "Copy as curl")),
  )
  dialog.addEventListener("close", () => dialog.remove())
  document.body.append(dialog)
  dialog.showModal()
}

export function bucketDialog(server, proposed, done) {
  const name = h("input", { name: "bucket", required: true, autocomplete: "off", spellcheck: "false", placeholder: "agents", value: proposed })
  const path = () => `${server.settings.bucketRoot}/${encodeURIComponent(name.value.trim())}`
  formDialog({
    title: "New bucket",
    intro: "A bucket holds streams of its own, with listings and snapshots, under /bucket/stream.",
    fields: [field("Name", name, "4 to 64 of a-z, 0-9, _ and -.")],
    submit: "Create",
    request: () => server.curl("PUT", server.url(path())),
    send: async () => {
      await server.request("PUT", path())
      toast(`Created the bucket ${name.value.trim()}`)
      done(name.value.trim())
    },
  })
}

/** `proposed` is the beginning of a name, or all of it. */
export function createDialog(server, proposed, done) {
  const name = h("input", { name: "name", required: true, autocomplete: "off", spellcheck: "false", value: proposed })
  const type = h("input", { name: "type", list: "types", value: "application/json", autocomplete: "off" })
  const ttl = h("input", { name: "ttl", inputmode: "numeric", placeholder: "lives for ever", autocomplete: "off" })
  const body = h("textarea", { name: "body", rows: "4", spellcheck: "false", placeholder: "empty" })
  const plan = () => {
    const headers = { "Content-Type": type.value.trim() || "application/octet-stream" }
    if (ttl.value.trim()) headers["Stream-TTL"] = ttl.value.trim()
    if (!name.value) throw new Error("A stream needs a name.")
    if (body.value && isJson(headers["Content-Type"])) checkJson(body.value)
    return { stream: server.stream(name.value), headers, body: body.value || null }
  }
  formDialog({
    title: "New stream",
    fields: [
      field("Name", name, "Slashes make folders: logs/today. In a bucket: /bucket/stream"),
      field("Content type", type),
      h("datalist", { id: "types" }, TYPES.map((value) => h("option", { value }))),
      field("Time to live, in seconds", ttl, "Every read and write renews it."),
      field("First content", body),
    ],
    submit: "Create",
    request: () => {
      const { stream, headers, body } = plan()
      return server.curl("PUT", server.url(stream.path), headers, body)
    },
    send: async () => {
      const { stream, headers, body } = plan()
      const response = await server.request("PUT", stream.path, { headers, body: body ?? undefined })
      toast(response.status === 201 ? `Created ${stream.name}` : `${stream.name} was there already`)
      done(stream)
    },
  })
}

export function forkDialog(server, source, offset, done) {
  const name = h("input", { name: "name", required: true, autocomplete: "off", spellcheck: "false", value: `${source.name}-fork` })
  const at = h("input", { name: "offset", autocomplete: "off", spellcheck: "false", class: "mono", value: offset ?? "", placeholder: "the tail" })
  const plan = () => {
    const headers = { "Stream-Forked-From": server.serverPath(source) }
    if (at.value.trim()) headers["Stream-Fork-Offset"] = at.value.trim()
    if (!name.value) throw new Error("A fork needs a name.")
    return { stream: server.stream(name.value), headers }
  }
  formDialog({
    title: "Fork",
    intro: `A stream that shares everything before the offset with ${source.name} and then goes its own way. Nothing is copied.`,
    fields: [field("Name of the fork", name), field("From offset", at, "The first message that the fork does not share.")],
    submit: "Fork",
    request: () => {
      const { stream, headers } = plan()
      return server.curl("PUT", server.url(stream.path), headers)
    },
    send: async () => {
      const { stream, headers } = plan()
      await server.request("PUT", stream.path, { headers })
      toast(`Forked to ${stream.name}`)
      done(stream)
    },
  })
}

export function closeDialog(server, stream) {
  const headers = { "Stream-Closed": "true" }
  formDialog({
    title: "Close the stream?",
    intro: `${stream.name} will take no more messages. It stays readable. This cannot be undone.`,
    fields: [],
    submit: "Close stream",
    danger: true,
    request: () => server.curl("POST", server.url(stream.path), headers),
    send: async () => {
      await server.request("POST", stream.path, { headers })
      toast(`Closed ${stream.name}`)
    },
  })
}

export function deleteDialog(server, stream, done) {
  formDialog({
    title: "Delete the stream?",
    intro: `${stream.name} and its messages will be gone for every reader. This cannot be undone.`,
    fields: [],
    submit: "Delete stream",
    danger: true,
    request: () => server.curl("DELETE", server.url(stream.path)),
    send: async () => {
      await server.request("DELETE", stream.path)
      toast(`Deleted ${stream.name}`)
      done()
    },
  })
}

function tokenQuestion(refused) {
  if (!refused) return "Sent as a bearer token with every request."
  if (refused.sentToken) return `This token was refused: ${refused.message}`
  return "The server, or a proxy in front of it, wants to know who you are."
}

/** Resolves true once a token was entered, false if that was declined. */
export function tokenDialog(server, refused) {
  const token = h("input", { name: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true })
  return new Promise((resolve) => {
    const dialog = formDialog({
      title: "Token",
      intro: tokenQuestion(refused),
      fields: [field("Bearer token", token, "Kept in this page's memory only: a reload forgets it.")],
      submit: "Use token",
      send: async () => {
        if (!token.value.trim()) throw new Error("Enter a token, or cancel.")
        server.token = token.value.trim()
        resolve(true)
      },
    })
    dialog.addEventListener("close", () => resolve(false))
  })
}

const KEYS = [
  ["/", "search streams"],
  ["j k ↑ ↓", "move in the list or the messages"],
  ["← →", "fold and unfold"],
  ["Enter", "open"],
  ["f", "search messages"],
  ["p", "pause or resume the live tail"],
  ["g", "jump to the start"],
  ["e", "jump to the end"],
  ["v", "next view: messages, state, transcript"],
  ["a", "append"],
  ["n", "new stream"],
  ["o", "overview"],
  ["t", "dark, light or as the system"],
  ["?", "these keys"],
]

export function helpDialog() {
  const dialog = h(
    "dialog",
    { class: "sheet", "aria-label": "Keys" },
    h("header", {}, h("h2", {}, "Keys"), closeButton(() => dialog.close())),
    h("dl", { class: "keys" }, KEYS.map(([keys, what]) => [h("dt", {}, keys.split(" ").map((key) => h("kbd", {}, key))), h("dd", {}, what)]).flat()),
  )
  dialog.addEventListener("close", () => dialog.remove())
  document.body.append(dialog)
  dialog.showModal()
}

/** Throws a sentence where `text` is not JSON; else how many messages it is. */
export function checkJson(text) {
  let value
  try {
    value = JSON.parse(text)
  } catch (error) {
    throw new Error(`Not JSON: ${error.message}`)
  }
  if (!Array.isArray(value)) return 1
  if (value.length === 0) throw new Error("An empty array holds no message.")
  return value.length
}
