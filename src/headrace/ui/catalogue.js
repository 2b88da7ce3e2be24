// Which streams exist: follows `__registry__` and keeps the names as a tree.

import { follow } from "./reading.js"

const REGISTRY = "__registry__"

class Folder {
  constructor(name, path, depth) {
    this.name = name
    this.path = path
    this.depth = depth
    this.children = new Map() // name -> Node
    this.sorted = []
    this.fresh = [] // children that `sorted` does not have yet
    this.open = false
    this.entry = null // the stream of this very name, if there is one
    this.size = 0 // streams in and below it
    this.isBucket = false
  }

  /** Children in order. What is new is sorted by itself and merged: 100,000 names stay quick. */
  ordered() {
    if (this.fresh.length) {
      this.fresh.sort(byName)
      this.sorted = merge(this.sorted, this.fresh)
      this.fresh = []
    }
    return this.sorted
  }

  remove(child) {
    this.children.delete(child.name)
    this.sorted = this.ordered().filter((kept) => kept !== child)
  }
}

/** The steps from the root to a stream; a bucket, with its slash, is one of them. */
function segments(path) {
  if (!path.startsWith("/")) return path.split("/")
  const slash = path.indexOf("/", 1)
  return slash < 0 ? [path] : [path.slice(0, slash), path.slice(slash + 1)]
}

const byName = (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0)

function merge(a, b) {
  const out = new Array(a.length + b.length)
  for (let i = 0, j = 0, k = 0; k < out.length; k += 1) {
    out[k] = j >= b.length || (i < a.length && byName(a[i], b[j]) <= 0) ? a[i++] : b[j++]
  }
  return out
}

export class Catalogue extends EventTarget {
  #position = null
  #changed = null
  #unfolded = new Set() // folders that were open before everything was forgotten

  constructor(server) {
    super()
    this.server = server
    this.entries = new Map() // name -> { name, lower, contentType, createdAt }
    this.root = new Folder("", "", -1)
    this.root.open = true
    this.loaded = false
    this.failure = null
  }

  start() {
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
      gone: (problem) => {
        if (problem.type === "invalid-offset") {
          this.#forget()
          this.start()
          return
        }
        this.failure = problem
        this.#announce()
      },
      position: () => this.#position,
    })
  }

  #forget() {
    const bucketed = [...this.entries.values()].filter(({ name }) => name.startsWith("/"))
    const buckets = [...this.root.children.values()].filter((node) => node.isBucket)
    this.entries.clear()
    this.#unfolded = new Set(this.rows().filter((node) => node.open).map((node) => node.path))
    this.root = Object.assign(new Folder("", "", -1), { open: true })
    this.#position = null
    this.loaded = false
    // The registry does not tell of buckets, so it has not forgotten them either.
    for (const { path } of buckets) this.addBucket(path.slice(1))
    for (const { name, contentType, createdAt } of bucketed) this.add({ path: name, contentType, createdAt })
    this.#announce()
  }

  #take(batch) {
    for (const { data } of batch.messages) {
      const change = JSON.parse(data)
      if (change.headers.operation === "delete") this.remove(change.key)
      else this.add(change.value)
    }
    this.#position = batch.next
  }

  addBucket(id) {
    const line = this.#descend(`/${id}`, true)
    const folder = line[line.length - 1]
    if (folder.isBucket) return
    folder.isBucket = true
    this.#announce()
  }

  /** A bucket is gone, and with it the streams that were known in it. */
  dropBucket(id, names) {
    const line = this.#descend(`/${id}`, false)
    line[line.length - 1].isBucket = false
    for (const name of names) this.remove(name)
    if (this.root.children.get(`/${id}`)?.size === 0) this.root.remove(line[line.length - 1])
    this.#announce()
  }

  /** At most once per frame, however much changes. */
  #announce() {
    this.#changed ??= requestAnimationFrame(() => {
      this.#changed = null
      this.dispatchEvent(new Event("change"))
    })
  }

  add({ path, contentType, createdAt }) {
    const entry = { name: path, lower: path.toLowerCase(), contentType, createdAt }
    const known = this.entries.get(path)
    if (known?.createdAt === createdAt && known.contentType === contentType) return
    this.entries.set(path, entry)
    const line = this.#descend(path, true)
    const node = line[line.length - 1]
    node.entry = entry
    if (!known) for (const folder of line) folder.size += 1
    this.#announce()
  }

  remove(path) {
    if (!this.entries.delete(path)) return
    const line = this.#descend(path, false)
    line[line.length - 1].entry = null
    for (const folder of line) folder.size -= 1
    for (let i = line.length - 1; i > 0 && line[i].size === 0 && !line[i].isBucket; i -= 1) line[i - 1].remove(line[i])
    this.#announce()
  }

  /** The nodes from the root to `path`. */
  #descend(path, make) {
    const line = [this.root]
    let node = this.root
    for (const name of segments(path)) {
      let child = node.children.get(name)
      if (!child) {
        if (!make) break
        child = new Folder(name, node.path ? `${node.path}/${name}` : name, node.depth + 1)
        child.open = this.#unfolded.has(child.path)
        node.children.set(name, child)
        node.fresh.push(child)
      }
      line.push(child)
      node = child
    }
    return line
  }

  /** The nodes that are to be seen: open folders' children, in order. */
  rows() {
    const rows = []
    const visit = (folder) => {
      for (const child of folder.ordered()) {
        rows.push(child)
        if (child.open && child.children.size) visit(child)
      }
    }
    visit(this.root)
    return rows
  }

  /** The nodes of streams whose names hold `needle` (lower case), in order of name. */
  matching(needle) {
    const found = []
    const visit = (folder) => {
      for (const child of folder.ordered()) {
        if (child.entry?.lower.includes(needle)) found.push(child)
        if (child.children.size) visit(child)
      }
    }
    visit(this.root)
    return found
  }

  /** Open every folder above `name`. */
  reveal(name) {
    const line = this.#descend(name, false)
    for (const folder of line.slice(0, -1)) folder.open = true
  }
}
