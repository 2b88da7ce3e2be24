// How values are written for people: sizes, counts, durations, JSON, hex.

import { h } from "./dom.js"

const COUNT = new Intl.NumberFormat("en")
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"]

export const count = (n) => COUNT.format(n)

export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`
}

// A unit is chosen by what the number is after rounding: 999.6 µs are 1.00 ms, not 1000 µs.

export function bytes(n) {
  let unit = 0
  const shown = () => (unit && n < 99.95 ? n.toFixed(1) : String(Math.round(n)))
  while (Number(shown()) >= 1024 && unit < UNITS.length - 1) {
    n /= 1024
    unit += 1
  }
  return `${shown()} ${UNITS[unit]}`
}

export function rate(n) {
  if (n === 0) return "0"
  if (n < 0.995) return n.toFixed(2)
  if (n < 9.95) return n.toFixed(1)
  return n < 9999.5 ? COUNT.format(Math.round(n)) : `${(n / 1000).toFixed(n < 99_950 ? 1 : 0)}k`
}

export function seconds(secs) {
  if (!Number.isFinite(secs)) return "–"
  if (secs === 0) return "0 s"
  if (secs < 0.000_999_5) return `${Math.round(secs * 1e6)} µs`
  if (secs < 0.999_95) return `${(secs * 1000).toFixed(secs < 0.009_995 ? 2 : 1)} ms`
  if (secs < 119.5) return `${secs.toFixed(secs < 99.995 ? 2 : 0)} s`
  return secs < 7170 ? `${Math.round(secs / 60)} min` : `${(secs / 3600).toFixed(1)} h`
}

/** A time of day, to the second. */
export function clock(ms) {
  return new Date(ms).toLocaleTimeString("sv-SE")
}

export function countdown(ms) {
  if (ms <= 0) return "now"
  const total = Math.ceil(ms / 1000)
  const days = Math.floor(total / 86400)
  const clock = [Math.floor(total / 3600) % 24, Math.floor(total / 60) % 60, total % 60]
  const text = clock.map((part) => String(part).padStart(2, "0")).join(":")
  return days ? `${plural(days, "day")} ${text}` : text
}

export function moment(ms) {
  return new Date(ms).toLocaleString("sv-SE")
}

export function utf8Length(text) {
  return new TextEncoder().encode(text).length
}

/** The whole of `bytes` as text, or null where it is not UTF-8. */
export function decodeUtf8(data) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data)
  } catch {
    return null
  }
}

const HEX = Array.from({ length: 256 }, (_, n) => n.toString(16).padStart(2, "0"))

/** Lines of sixteen bytes: place, hex, and what is printable of it. */
export function hexDump(data, bytesMax) {
  const lines = []
  const end = Math.min(data.length, bytesMax)
  for (let at = 0; at < end; at += 16) {
    const row = data.subarray(at, Math.min(at + 16, end))
    const hex = Array.from(row, (byte) => HEX[byte])
    const left = hex.slice(0, 8).join(" ").padEnd(23)
    const right = hex.slice(8).join(" ").padEnd(23)
    const text = Array.from(row, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·"))
    lines.push(`${at.toString(16).padStart(8, "0")}  ${left}  ${right}  ${text.join("")}`)
  }
  return lines.join("\n")
}

export function hexPreview(data) {
  return Array.from(data.subarray(0, 48), (byte) => HEX[byte]).join(" ") + (data.length > 48 ? " …" : "")
}

const JSON_TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*)|(true|false|null)|([{}[\],])/g

/** JSON text laid out by its own structure; numbers and escapes stay as they were sent. */
export function indentJson(text, charsMax) {
  const out = []
  let depth = 0
  let size = 0
  const put = (part) => {
    out.push(part.slice(0, charsMax - size))
    size += part.length
  }
  const line = () => put(`\n${"  ".repeat(depth)}`)
  JSON_TOKEN.lastIndex = 0
  let last = ""
  for (let match; (match = JSON_TOKEN.exec(text)) && size < charsMax; ) {
    const token = match[1] ?? match[0]
    if (token === "}" || token === "]") {
      depth -= 1
      if (last !== "{" && last !== "[") line()
      put(token)
    } else {
      if (last === "{" || last === "[" || last === ",") line()
      put(token)
      if (match[2]) put(": ")
      if (token === "{" || token === "[") depth += 1
    }
    last = match[2] ? ":" : token
  }
  return { text: out.join(""), whole: size < charsMax }
}

/** Text as coloured JSON: spans whose content is text. */
export function paintJson(text) {
  const parts = []
  let at = 0
  JSON_TOKEN.lastIndex = 0
  for (let match; (match = JSON_TOKEN.exec(text)); ) {
    const [, string, colon, number, word] = match
    const kind = string ? (colon ? "key" : "string") : number ? "number" : word ? "word" : null
    if (kind === null) continue
    if (match.index > at) parts.push(text.slice(at, match.index))
    const shown = string ?? match[0]
    parts.push(h("span", { class: `json-${kind}` }, shown))
    at = match.index + shown.length
    JSON_TOKEN.lastIndex = at
  }
  parts.push(text.slice(at))
  return parts
}

/** Text with every occurrence of `needle` (lower case) marked. */
export function markText(text, needle) {
  if (!needle) return [text]
  const parts = []
  const lower = text.toLowerCase()
  let at = 0
  for (let found = lower.indexOf(needle); found >= 0; found = lower.indexOf(needle, at)) {
    parts.push(text.slice(at, found), h("mark", {}, text.slice(found, found + needle.length)))
    at = found + needle.length
  }
  parts.push(text.slice(at))
  return parts
}
