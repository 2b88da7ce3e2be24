// What the server says of streams besides their bytes, asked for again and again while it is
// looked at: in brief for the streams in sight, in full for the one that is open.

import { Away } from "./server.js"
import { parseOffset } from "./stream-reader.js"
import { Rate } from "./charts.js"

const EVERY_MS = 2000
const URL_BYTES_MAX = 6000 // a request of the server's limit, 8 KiB, less headers of proxies
const SAMPLES_MAX = 24
const KEPT_MAX = 1000

/** Calls `work` every `everyMs` while the page is in sight; `soon()` calls it before its time. */
export class Ticker {
  #timer = null
  #busy = false
  #again = false

  constructor(work, everyMs = EVERY_MS) {
    this.work = work
    this.everyMs = everyMs
    document.addEventListener("visibilitychange", () => this.soon())
  }

  soon(delayMs = 0) {
    if (this.#busy) {
      this.#again = true
      return
    }
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => this.#run(), delayMs)
  }

  async #run() {
    if (document.hidden) return
    this.#busy = true
    this.#again = false
    try {
      await this.work()
    } catch (error) {
      if (!(error instanceof Away)) console.warn(error)
    } finally {
      this.#busy = false
      this.soon(this.#again ? 100 : this.everyMs)
    }
  }
}

/** The state of the streams in sight: name -> { closed, forked, expiresAt, messages, rates }. */
export class Statuses extends EventTarget {
  #known = new Map()
  #wanted = new Map() // who shows streams -> their names
  #ticker

  constructor(server) {
    super()
    this.server = server
    this.#ticker = new Ticker(() => this.#ask())
  }

  get(name) {
    return this.#known.get(name)
  }

  /** These names are in sight now, in one of the places that show streams. */
  want(names, place) {
    this.#wanted.set(place, names)
    if (names.some((name) => !this.#known.has(name))) this.#ticker.soon(120)
  }

  async #ask() {
    if (this.server.away) return
    const names = [...new Set([...this.#wanted.values()].flat())]
    while (names.length) {
      const query = takeNames(names)
      const { now_ms, streams } = await this.server.json(`${this.server.settings.streamRoot}/__ds/streams?${query}`)
      for (const found of streams) this.#note(found, now_ms)
    }
    while (this.#known.size > KEPT_MAX) this.#known.delete(this.#known.keys().next().value)
    this.dispatchEvent(new Event("change"))
  }

  #note(found, nowMs) {
    const status = this.#known.get(found.stream) ?? { rate: new Rate(), rates: [] }
    this.#known.delete(found.stream) // the latest stand last
    this.#known.set(found.stream, status)
    const { messages, bytes } = parseOffset(found.tail_offset)
    const rate = status.rate.next(nowMs, messages)
    if (rate !== null) status.rates.push(rate)
    if (status.rates.length > SAMPLES_MAX) status.rates.shift()
    Object.assign(status, {
      messages,
      bytes,
      type: found.content_type,
      earliest: parseOffset(found.earliest_offset).messages,
      closed: found.closed,
      forked: found.forked_from !== null,
      forks: found.fork_count,
      expires: found.ttl_secs !== null || found.expires_at_ms !== null,
      expiresAt: found.expires_at_ms,
    })
  }
}

/** As many names as fit into one request, taken off `names`. */
function takeNames(names) {
  const query = new URLSearchParams()
  let size = 0
  while (names.length && query.size < 200) {
    const length = encodeURIComponent(names[0]).length + 6
    if (size && size + length > URL_BYTES_MAX) break
    size += length
    query.append("name", names.shift())
  }
  return query
}
