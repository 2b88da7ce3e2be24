// Which buckets exist and what is in them. There is no stream that announces either: the list of
// buckets is asked for again and again, and a bucket's listing whenever its count has changed.

import { Ticker } from "./watch.js"
import { Problem } from "./server.js"

const EVERY_MS = 3000
const PAGE = 1000
const SMALL = 1000 // a bucket of one page is listed again now and then, whatever its count
const AGAIN_MS = 9000

export class Buckets {
  #known = new Map() // bucket id -> { count, listedAt, names }
  #ticker

  constructor(server, catalogue) {
    this.server = server
    this.catalogue = catalogue
    this.#ticker = new Ticker(() => this.#ask(), EVERY_MS)
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
    let buckets
    try {
      ;({ buckets } = await server.json(`${server.settings.streamRoot}/__ds/buckets`))
    } catch (error) {
      if (error instanceof Problem) return
      throw error
    }
    const ids = new Set(buckets.map(({ bucket_id }) => bucket_id))
    for (const [id, { names }] of this.#known) {
      if (ids.has(id)) continue
      this.#known.delete(id)
      catalogue.dropBucket(id, names)
    }
    for (const { bucket_id, streams } of buckets) {
      catalogue.addBucket(bucket_id)
      const known = this.#known.get(bucket_id)
      const stale = known && streams <= SMALL && Date.now() - known.listedAt > AGAIN_MS
      if (!known || known.count !== streams || stale) await this.#list(bucket_id, streams)
    }
  }

  async #list(id, count) {
    const { server, catalogue } = this
    const names = new Set()
    for (let after = null; ; ) {
      const query = after === null ? { limit: PAGE } : { limit: PAGE, after }
      const page = await server.json(`${server.settings.bucketRoot}/${id}/streams`, { query })
      for (const { stream_id, content_type, created_at_ms } of page.streams) {
        const name = `/${id}/${stream_id}`
        names.add(name)
        catalogue.add({ path: name, contentType: content_type, createdAt: created_at_ms })
      }
      after = page.next_cursor
      if (!page.has_more) break
    }
    for (const name of this.#known.get(id)?.names ?? []) if (!names.has(name)) catalogue.remove(name)
    this.#known.set(id, { count, names, listedAt: Date.now() })
  }
}
