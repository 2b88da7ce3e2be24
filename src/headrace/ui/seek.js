// Finding a place in a stream by the number of a message, and reading a stretch of it.

import { parseOffset, readFrame } from "./stream-reader.js"

const SHORT_BYTES = 16 * 1024 * 1024 // a stream up to this is read whole

/** Of a long stream: its last ones, and the rest on demand. */
export const FIRST_MESSAGES = 20_000

/** The offset of the message with this number; `floor` is the earliest kept, if that is known. */
export async function seek(server, stream, floor, number) {
  const start = floor?.token ?? "-1"
  const skipped = number - (floor?.messages ?? 0)
  if (skipped <= 0) return start
  const asked = { stream: stream.name, from: start, max_messages: skipped }
  const response = await server.request("POST", `${server.settings.streamRoot}/__ds/tails`, {
    body: JSON.stringify({ streams: [asked] }),
    headers: { "Content-Type": "application/json" },
  })
  return (await response.json()).streams[0].until_offset ?? start
}

/** Where to begin reading: the start, or the last messages of a stream that is long. */
export async function firstOffset(server, stream, tail) {
  if (tail.bytes <= SHORT_BYTES || tail.messages <= FIRST_MESSAGES) return "-1"
  return seek(server, stream, null, tail.messages - FIRST_MESSAGES)
}

/** The messages up to the one at `until`, as many as a first look gives: { start, messages }. */
export async function readBefore(server, stream, floor, until) {
  const loaded = { start: null, messages: [] }
  let at = await seek(server, stream, floor, Math.max(0, parseOffset(until).messages - FIRST_MESSAGES))
  while (at !== until) {
    const frame = await readFrame(server, stream, at, undefined, { until })
    loaded.start ??= frame.start
    for (const message of frame.messages) loaded.messages.push(message)
    at = frame.next
  }
  return loaded
}
