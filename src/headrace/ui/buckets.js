// Which buckets exist and what is in them. A bucket is listed once; from then on its feed tells
// what changed. How far each feed is stands in the list of buckets, which is asked for again and
// again: one request for all of them, and no connection that is held.

import { inSlices } from "./chunked-work.js"
import { Problem } from "./server.js"
import { Ticker } from "./status-poller.js"

const EVERY_MS = 2000
const BUCKET_MS = 2 // the more buckets there are, the more rarely they are asked for
const PAGE = 1000

export class Buckets {
  #known = new Map() // bucket id -> { createdAt, cursor: the place in its feed }
  #ticker

  constructor(server, catalogue) {
    this.server = server
    this.catalogue = catalogue
    this.#ticker = new Ticker(() => this.#ask().finally(() => catalogue.bucketsAreKnown()), EVERY_MS)
  }

  start() {
    this.#ticker.soon()
  }

  soon() {
    this.#ticker.soon()
  }

  async #ask() {
    const { server, catalogue } = this
    if (server.away) return
    const { buckets } = await server.json(`${server.settings.streamRoot}/__ds/buckets`)
    this.#ticker.everyMs = Math.max(EVERY_MS, BUCKET_MS * buckets.length)
    const created = new Map(buckets.map(({ bucket_id, created_at_ms }) => [bucket_id, created_at_ms]))
    for (const [id, { createdAt }] of this.#known) {
      if (created.get(id) === createdAt) continue
      this.#known.delete(id)
      await catalogue.dropBucket(id)
    }
    for (const { bucket_id: id } of buckets) catalogue.addBucket(id)
    for (const { bucket_id: id, created_at_ms, next_offset } of buckets) {
      const known = this.#known.get(id)
      if (known?.cursor === next_offset) continue
      try {
        if (known) await this.#follow(id, known)
        else await this.#list(id, created_at_ms, next_offset)
      } catch (error) {
        if (!(error instanceof Problem)) throw error
        this.#known.delete(id) // its feed no longer has that place, or it is gone: list it again
      }
    }
  }

  #path(id) {
    return `${this.server.settings.bucketRoot}/${encodeURIComponent(id)}/streams`
  }

  /** What changed since the cursor. */
  async #follow(id, known) {
    for (let upToDate = false; !upToDate; ) {
      const response = await this.server.request("GET", this.#path(id), { query: { changes_from: known.cursor } })
      await inSlices(await response.json(), ({ stream_id, deleted }) => {
        const name = `/${id}/${stream_id}`
        if (deleted) this.catalogue.remove(name)
        else this.catalogue.add(name)
      })
      known.cursor = response.headers.get("stream-next-offset")
      upToDate = response.headers.get("stream-up-to-date") === "true"
    }
  }

  /** Everything in a bucket; `cursor` is a place in its feed from before. */
  async #list(id, createdAt, cursor) {
    const { server, catalogue } = this
    const names = new Set()
    for (let after = null, more = true; more; ) {
      const query = after === null ? { limit: PAGE } : { limit: PAGE, after }
      const page = await server.json(this.#path(id), { query })
      await inSlices(page.streams, ({ stream_id, created_at_ms }) => {
        const name = `/${id}/${stream_id}`
        names.add(name)
        catalogue.add(name, created_at_ms)
      })
      after = page.next_cursor
      more = page.has_more
    }
    await inSlices(catalogue.tree.inBucket(id), (name) => {
      if (!names.has(name)) catalogue.remove(name)
    })
    this.#known.set(id, { createdAt, cursor })
  }
}
