// Snapshots of a stream in a bucket: look at the latest, publish one, see what bootstrap gives.

import { copy, h, icon, replace, toast } from "./dom.js"
import { bytes, count, decodeUtf8, hexDump, indentJson, paintJson, plural } from "./format.js"
import { checkJson, formDialog, field, sheet } from "./dialogs.js"
import { isJson, isText, mediaType, parseOffset } from "./stream-reader.js"
import { section } from "./details.js"

const SHOWN_CHARS = 100_000
const SHOWN_BYTES = 16 * 1024
const SHOWN_PARTS = 200

/** What the details say of snapshots. `offset` is that of the latest, or null. */
export function snapshotSection(server, stream, offset, tail, changed) {
  const button = (label, act, disabled = false) => h("button", { type: "button", class: "quiet", disabled, on: { click: act } }, label)
  return section(
    "Snapshots",
    button([icon("camera"), "Publish"], () => publishDialog(server, stream, tail, changed)),
    h("p", { class: "dim" }, offset === null ? "None yet." : `The latest stands at message ${count(parseOffset(offset).messages)}; reading begins there.`),
    h("div", { class: "panel-actions" }, button("View", () => viewSnapshot(server, stream, offset), offset === null), button("Bootstrap preview", () => viewBootstrap(server, stream))),
  )
}

function publishDialog(server, stream, tail, done) {
  const at = h("input", { name: "offset", class: "mono", autocomplete: "off", spellcheck: "false", value: tail ?? "" })
  const type = h("input", { name: "type", list: "types", value: "application/json", autocomplete: "off" })
  const body = h("textarea", { name: "body", rows: "6", spellcheck: "false" })
  const plan = () => {
    const headers = { "Content-Type": type.value.trim() || "application/octet-stream" }
    if (isJson(headers["Content-Type"])) checkJson(body.value)
    return { path: `${stream.path}/snapshot/${encodeURIComponent(at.value.trim())}`, headers, body: body.value }
  }
  formDialog({
    title: "Publish a snapshot",
    intro: "What everything before the offset adds up to. Messages before it can no longer be read one by one: a reader begins with the snapshot.",
    fields: [field("At offset", at, "A message boundary; the tail unless you choose another."), field("Content type", type), field("Content", body)],
    submit: "Publish",
    request: () => {
      const { path, headers, body } = plan()
      return server.curl("PUT", server.url(path), headers, body)
    },
    send: async () => {
      const { path, headers, body } = plan()
      await server.request("PUT", path, { headers, body })
      toast("Published the snapshot")
      done()
    },
  })
}

async function viewSnapshot(server, stream, offset) {
  const path = `${stream.path}/snapshot/${encodeURIComponent(offset)}`
  try {
    const response = await server.request("GET", path)
    const data = new Uint8Array(await response.arrayBuffer())
    const type = response.headers.get("content-type")
    sheet("Snapshot", [
      h("p", { class: "dim" }, `${type} · ${bytes(data.length)} · at ${offset}`),
      payload(data, type),
    ], server.curl("GET", server.url(path)))
  } catch (error) {
    toast(error.message, "error")
  }
}

async function viewBootstrap(server, stream) {
  const path = `${stream.path}/bootstrap`
  try {
    const response = await server.request("GET", path)
    const data = new Uint8Array(await response.arrayBuffer())
    const [first, ...updates] = parseMultipart(data, response.headers.get("content-type"))
    const at = response.headers.get("stream-snapshot-offset")
    sheet("Bootstrap", [
      h("p", { class: "dim" }, `${at === "-1" ? "No snapshot" : `Snapshot at ${at}`}, then ${plural(updates.length, "message")}; go on from ${response.headers.get("stream-next-offset")}`),
      at === "-1" ? null : payload(first.data, first.type),
      h("ol", { class: "parts" }, updates.slice(0, SHOWN_PARTS).map((part) => h("li", {}, h("code", {}, oneLine(part)), h("small", { class: "dim" }, bytes(part.data.length))))),
      updates.length > SHOWN_PARTS ? h("p", { class: "dim" }, `… ${plural(updates.length - SHOWN_PARTS, "more message")}`) : null,
    ], server.curl("GET", server.url(path)))
  } catch (error) {
    toast(error.message, "error")
  }
}

function oneLine({ data, type }) {
  const text = isText(type) ? decodeUtf8(data.subarray(0, 300)) : null
  return text === null ? hexDump(data, 16).slice(10) : text.replace(/\s+/g, " ").slice(0, 200)
}

function payload(data, type) {
  const text = isText(type) ? decodeUtf8(data) : null
  const body = h("pre", { class: "payload", tabindex: "0", "aria-label": "Content" })
  if (text === null) return replace(body, hexDump(data, SHOWN_BYTES))
  return replace(body, isJson(type) ? paintJson(indentJson(text, SHOWN_CHARS / 5).text) : text.slice(0, SHOWN_CHARS))
}

/** The parts of a multipart/mixed body, by RFC 2046: { type, data }. */
export function parseMultipart(data, contentType) {
  const boundary = /boundary="?([^";]+)"?/i.exec(contentType)?.[1]
  if (mediaType(contentType) !== "multipart/mixed" || !boundary) throw new Error("This is no multipart answer.")
  const mark = new TextEncoder().encode(`--${boundary}`)
  const parts = []
  let at = indexOf(data, mark, 0)
  while (at >= 0) {
    const start = at + mark.length
    if (data[start] === 45 && data[start + 1] === 45) break // "--": the end
    const end = nextMark(data, mark, start)
    if (end < 0) break
    parts.push(parsePart(data.subarray(start + 2, end - 2)))
    at = end
  }
  return parts
}

/** The next boundary that stands at the beginning of a line. */
function nextMark(data, mark, from) {
  let at = indexOf(data, mark, from)
  while (at >= 0 && !(data[at - 2] === 13 && data[at - 1] === 10)) at = indexOf(data, mark, at + 1)
  return at
}

function parsePart(part) {
  const blank = indexOf(part, Uint8Array.of(13, 10, 13, 10), 0)
  // A part without headers begins with its blank line.
  const headersEnd = part[0] === 13 && part[1] === 10 ? 0 : blank
  const head = new TextDecoder("latin1").decode(part.subarray(0, Math.max(0, headersEnd)))
  const type = /^content-type:\s*(.*)$/im.exec(head)?.[1]?.trim() ?? "application/octet-stream"
  return { type, data: part.subarray(headersEnd + (headersEnd === 0 ? 2 : 4)) }
}

function indexOf(data, wanted, from) {
  for (let at = data.indexOf(wanted[0], from); at >= 0; at = data.indexOf(wanted[0], at + 1)) {
    let i = 1
    while (i < wanted.length && data[at + i] === wanted[i]) i += 1
    if (i === wanted.length) return at
  }
  return -1
}
