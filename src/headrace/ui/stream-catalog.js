// Which streams exist: follows `__registry__`, is told of buckets and theirs, keeps all as a tree.

import { follow } from "./stream-reader.js"
import { inSlices } from "./chunked-work.js"
import { Tree } from "./tree.js"

const REGISTRY = "__registry__"
const LARGE = 5000 // streams; from here on a look at all of them is worth waiting for
const LARGE_EVERY_MS = 250

export class Catalogue extends EventTarget {
  #position = null
  #changed = null
  #knowsBuckets = false

  constructor(server) {
    super()
    this.server = server
    this.entries = new Map() // name -> { name, createdAt }
    this.tree = new Tree()
    this.loaded = false // whether the registry has been read to its end
    this.failure = null
  }

  start() {
    this.failure = null
    const stream = this.server.stream(REGISTRY)
    follow(this.server, stream, "-1", new AbortController().signal, {
      messages: (batch) => this.#take(batch),
      state: (state) => {
        if (state.upToDate && !this.loaded) {
          this.loaded = true
          this.#announce()
        }
      },
      // Another server, or a shorter memory: what it announces from here on is the whole truth.
      trimmed: () => this.#forget(),
      gone: async (problem) => {
        if (problem.type === "invalid-offset") {
          await this.#forget()
          this.start()
          return
        }
        this.failure = problem
        this.#announce()
      },
      position: () => this.#position,
    })
  }

  /** The registry does not tell of buckets, so it has not forgotten them either. */
  async #forget() {
    this.#position = null
    this.loaded = false
    await inSlices([...this.entries.keys()], (name) => {
      if (!name.startsWith("/")) this.remove(name)
    })
    this.#announce()
  }

  async #take(batch) {
    await inSlices(batch.messages, ({ data }) => {
      const change = JSON.parse(data)
      if (change.headers.operation === "delete") this.remove(change.key)
      else this.add(change.value.path, change.value.createdAt)
    })
    this.#position = batch.next
  }

  /** Whether all there is was told: the registry to its end, and the buckets. */
  get complete() {
    return this.loaded && this.#knowsBuckets
  }

  /** The buckets were looked at, or cannot be. */
  bucketsAreKnown() {
    if (this.#knowsBuckets) return
    this.#knowsBuckets = true
    this.#announce()
  }

  addBucket(id) {
    if (this.tree.putBucket(id)) this.#announce()
  }

  /** A bucket is gone, and with it the streams that were known in it. */
  async dropBucket(id) {
    await inSlices(this.tree.inBucket(id), (name) => this.remove(name))
    this.tree.removeBucket(id)
    this.#announce()
  }

  /** A stream is there; `createdAt`, where it is known, tells it from one of the same name before. */
  add(name, createdAt = null) {
    const known = this.entries.get(name)
    if (known && (createdAt === null || known.createdAt === createdAt)) return
    const entry = { name, createdAt }
    this.entries.set(name, entry)
    this.tree.put(entry)
    this.#announce()
  }

  remove(name) {
    if (!this.entries.delete(name)) return
    this.tree.remove(name)
    this.#announce()
  }

  /** At most once per frame, however much changes; more rarely where there is much to look at. */
  #announce() {
    if (this.#changed !== null) return
    const announce = () => {
      this.#changed = null
      this.dispatchEvent(new Event("change"))
    }
    this.#changed = this.entries.size > LARGE ? setTimeout(announce, LARGE_EVERY_MS) : requestAnimationFrame(announce)
  }
}
