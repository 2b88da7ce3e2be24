// Reading a stream message by message, and following it: catch-up in frames, then SSE over fetch
// (EventSource cannot carry a token).
//
// A framed body says where each message ends, which SSE does not. So an event whose one message
// is certain is taken as it is; any other is the sign to read on in frames.

import { Away, Problem } from "./server.js"
import { decodeUtf8, utf8Length } from "./format.js"
import { rest } from "./chunked-work.js"

const FRAME_HEAD_BYTES = 32
// Small enough to take apart within a frame of the screen.
const CHUNK_BYTES = 256 * 1024
const CHUNK_MESSAGES = 4000
const DIGITS = 16

/** The halves of an offset: messages before it, bytes before it. */
export function parseOffset(token) {
  const [messages, bytes] = token.split("_").map(Number)
  return { messages, bytes, token }
}

export function formatOffset(messages, bytes) {
  return `${String(messages).padStart(DIGITS, "0")}_${String(bytes).padStart(DIGITS, "0")}`
}

export const isJson = (contentType) => mediaType(contentType) === "application/json"
export const isText = (contentType) => isJson(contentType) || mediaType(contentType).startsWith("text/")
export const mediaType = (contentType) => (contentType ?? "").split(";")[0].trim().toLowerCase()

/** Messages from one offset on, at most a chunk of them. */
export async function readFrame(server, stream, offset, signal, bounds = {}) {
  const query = { offset, format: "framed", max_bytes: CHUNK_BYTES, max_messages: CHUNK_MESSAGES, ...bounds }
  const response = await server.request("GET", stream.path, { query, signal })
  const text = isText(response.headers.get("stream-content-type"))
  const { start, messages } = decodeFrame(await response.arrayBuffer(), text)
  return {
    start,
    messages,
    next: response.headers.get("stream-next-offset"),
    contentType: response.headers.get("stream-content-type"),
    upToDate: response.headers.get("stream-up-to-date") === "true",
    closed: response.headers.get("stream-closed") === "true",
  }
}

/** A message is { size, data }: the stored size, and a string where it is text, else bytes. */
function decodeFrame(body, text) {
  const head = new DataView(body)
  const separator = head.getUint32(4, true)
  const length = Number(head.getBigUint64(8, true))
  const start = { messages: Number(head.getBigUint64(16, true)), bytes: Number(head.getBigUint64(24, true)) }
  const messages = new Array(length)
  let at = FRAME_HEAD_BYTES + 4 * length
  for (let i = 0; i < length; i += 1) {
    const size = head.getUint32(FRAME_HEAD_BYTES + 4 * i, true)
    const data = new Uint8Array(body, at, size - separator)
    messages[i] = { size, data: text ? (decodeUtf8(data) ?? data) : data }
    at += size
  }
  return { start, messages }
}

/** The events of an SSE response, by the rules of the HTML standard. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
  let pending = []
  let type = ""
  let data = []
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    pending.push(value)
    if (!/[\r\n]/.test(value)) continue // one long line: look at it once, not with every piece
    // A CR at the very end may be half of a CRLF.
    const lines = pending.join("").split(/\r\n|\n|\r(?!$)/)
    pending = [lines.pop()]
    for (const line of lines) {
      if (line === "") {
        if (data.length) yield { type: type || "message", data: data.join("\n") }
        type = ""
        data = []
        continue
      }
      const colon = line.indexOf(":")
      const field = colon < 0 ? line : line.slice(0, colon)
      const rest = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "")
      if (field === "data") data.push(rest)
      else if (field === "event") type = rest
    }
  }
}

/**
 * Reads a stream from `offset` to its tail and goes on from there until `signal` ends it.
 *
 * `on.messages(batch)` gets { start, messages, next } and may take its time; `on.state({ live, upToDate, closed, next })`
 * where reading stands; `on.trimmed(offset)` that history before `offset` is gone;
 * `on.gone(problem)` that the stream is.
 */
export async function follow(server, stream, offset, signal, on) {
  let at = offset
  for (;;) {
    try {
      await server.back(signal)
      await inSight(signal)
      at = await followOnce(server, stream, at, signal, on)
      if (at === null) return
    } catch (error) {
      if (signal.aborted) return
      if (error.name === "AbortError") continue // out of sight before the server answered
      if (error instanceof Away) {
        on.state({ live: false })
      } else if (error instanceof Problem && error.type === "offset-trimmed") {
        at = error.facts.earliest_offset
        await on.trimmed(at)
      } else {
        on.gone(error)
        return
      }
      at = on.position() ?? at
    }
  }
}

/** Aborts when the page goes out of sight. A browser has six connections to a server, for all its
 * pages together, and a page that nobody sees must not keep two of them. */
function outOfSight() {
  const abort = new AbortController()
  const look = () => document.hidden && abort.abort()
  document.addEventListener("visibilitychange", look, { signal: abort.signal })
  return abort.signal
}

async function inSight(signal) {
  while (document.hidden) {
    await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true, signal }))
    signal.throwIfAborted()
  }
}

/** One round: catch up, then one SSE response. The offset to go on from; null at the very end. */
async function followOnce(server, stream, offset, signal, on) {
  let at = await catchUp(server, stream, offset, signal, on)
  if (at.closed) return null
  const query = { offset: at.next, live: "sse" }
  const hidden = outOfSight()
  const until = AbortSignal.any([signal, hidden])
  const response = await server.request("GET", stream.path, { query, signal: until, headers: { Accept: "text/event-stream" } })
  const base64 = response.headers.get("stream-sse-data-encoding") === "base64"
  let held = null
  on.state({ live: true, upToDate: true })
  try {
    for await (const event of events(response)) {
      if (event.type === "data") {
        held = event.data
        continue
      }
      const control = JSON.parse(event.data)
      const next = control.streamNextOffset
      const one = held === null ? null : soleMessage(held, at.next, next, base64, stream.isJson)
      if (one !== null) await on.messages({ start: parseOffset(at.next), messages: [one], next })
      else if (next !== at.next) at = await catchUp(server, stream, at.next, signal, on)
      held = null
      at = { ...at, next: at.next > next ? at.next : next, closed: at.closed || control.streamClosed === true }
      on.state({ live: !at.closed, upToDate: control.upToDate === true, closed: at.closed, next: at.next })
      if (at.closed) return null
    }
  } catch (error) {
    if (hidden.aborted && !signal.aborted) return at.next
    if (signal.aborted || error instanceof Problem || error instanceof Away) throw error
    throw server.lost()
  }
  return at.next
}

async function catchUp(server, stream, offset, signal, on) {
  for (let at = offset; ; ) {
    const frame = await readFrame(server, stream, at, signal)
    stream.isJson = isJson(frame.contentType)
    const isFirst = at === offset // where reading begins is news, even if nothing is there yet
    at = frame.next
    if (frame.messages.length || isFirst) await on.messages(frame)
    on.state({ upToDate: frame.upToDate, closed: frame.closed, next: at, contentType: frame.contentType })
    if (frame.upToDate) return { next: at, closed: frame.closed }
    await rest()
  }
}

/** The message of an event that holds exactly one and holds it exactly; else null. */
function soleMessage(payload, from, next, base64, json) {
  const start = parseOffset(from)
  const end = parseOffset(next)
  const size = end.bytes - start.bytes
  if (end.messages !== start.messages + 1) return null
  if (base64) return { size, data: Uint8Array.from(atob(payload), (c) => c.charCodeAt(0)) }
  const data = json ? payload.slice(1, -1) : payload
  return utf8Length(data) + (json ? 1 : 0) === size ? { size, data } : null
}
