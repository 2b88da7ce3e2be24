// Which producer wrote the messages in sight. The server knows where each producer's last appends
// ended: that is certain for the last message of an append, and nothing is said of others.

import { formatOffset, parseOffset } from "./stream-reader.js"
import { Away, Problem } from "./server.js"

const DELAY_MS = 150 // what scrolls past is not asked for
const RANGE_MAX = 1000 // of the server's own

/** Sets `writer` on messages: { id, epoch, seq }, or null where nobody knows. */
export class Writers extends EventTarget {
  #wanted = []
  #timer = null

  constructor(server, messages) {
    super()
    this.server = server
    this.messages = messages
    this.stream = null
  }

  open(stream) {
    this.stream = stream
    this.#wanted = []
  }

  /** The messages with these indexes are in sight now. */
  want(indexes) {
    this.#wanted = indexes.map((at) => this.messages.items[at])
    if (this.#unknown().length) this.#timer ??= setTimeout(() => this.#run(), DELAY_MS)
  }

  async #run() {
    try {
      await this.#ask()
    } catch (error) {
      if (!(error instanceof Problem || error instanceof Away)) throw error
      return // what is still in sight then is asked for with the next change
    } finally {
      this.#timer = null
    }
    if (this.#unknown().length) this.#timer = setTimeout(() => this.#run(), DELAY_MS)
  }

  #unknown() {
    return this.#wanted.filter((message) => message && message.writer === undefined)
  }

  async #ask() {
    const { stream, server } = this
    const unknown = this.#unknown()
    if (stream === null || !unknown.length) return
    if (server.away) throw new Away()
    const numbers = unknown.map((message) => message.number)
    const first = Math.min(...numbers)
    const asked = unknown.filter((message) => message.number < first + RANGE_MAX)
    const start = asked.find((message) => message.number === first)
    const last = asked.reduce((a, b) => (a.number > b.number ? a : b))
    const query = {
      writers_from: formatOffset(first, start.at),
      writers_until: formatOffset(last.number + 1, last.at + last.size),
    }
    const { writers } = await server.json(stream.inspectionPath, { query })
    const byEnd = new Map(writers.map((writer) => [parseOffset(writer.next_offset).messages, writer]))
    for (const message of asked) message.writer = byEnd.get(message.number + 1) ?? null
    this.dispatchEvent(new Event("change"))
  }
}
