// Names as a tree of folders, made for 100,000 of them in one folder: adding one costs the same
// however many there are, and order is made where it is looked at.

const FRESH_MAX = 1024 // sorted by themselves and merged: more would be one long task

class Folder {
  #sorted = []
  #fresh = [] // children that `#sorted` does not have yet
  #hasGone = false // whether `#sorted` has children that are no longer there

  constructor(name, path, depth) {
    this.name = name
    this.path = path
    this.depth = depth
    this.children = new Map() // name -> Folder
    this.open = false
    this.entry = null // the stream of this very name, if there is one
    this.size = 0 // streams in and below it
    this.isBucket = false
  }

  add(child) {
    this.children.set(child.name, child)
    this.#fresh.push(child)
    if (this.#fresh.length > FRESH_MAX) this.ordered()
  }

  remove(child) {
    this.children.delete(child.name)
    this.#hasGone = true
  }

  /** Children in order of name. */
  ordered() {
    if (this.#hasGone) {
      const isThere = (child) => this.children.get(child.name) === child
      this.#sorted = this.#sorted.filter(isThere)
      this.#fresh = this.#fresh.filter(isThere)
      this.#hasGone = false
    }
    if (this.#fresh.length) {
      this.#fresh.sort(byName)
      this.#sorted = merge(this.#sorted, this.#fresh)
      this.#fresh = []
    }
    return this.#sorted
  }
}

const byName = (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0)

function merge(a, b) {
  const out = new Array(a.length + b.length)
  for (let i = 0, j = 0, k = 0; k < out.length; k += 1) {
    out[k] = j >= b.length || (i < a.length && byName(a[i], b[j]) <= 0) ? a[i++] : b[j++]
  }
  return out
}

/** The steps from the root to a stream; a bucket, with its slash, is one of them. */
function segments(path) {
  if (!path.startsWith("/")) return path.split("/")
  const slash = path.indexOf("/", 1)
  return slash < 0 ? [path] : [path.slice(0, slash), path.slice(slash + 1)]
}

export class Tree {
  #root = Object.assign(new Folder("", "", -1), { open: true })
  #unfolded = new Set() // folders that went while they were open; they return so

  /** Put a stream there, or another in its place. */
  put(entry) {
    const line = this.#descend(entry.name, true)
    const node = line[line.length - 1]
    if (node.entry === null) for (const folder of line) folder.size += 1
    node.entry = entry
  }

  remove(path) {
    const line = this.#descend(path, false)
    line[line.length - 1].entry = null
    for (const folder of line) folder.size -= 1
    this.#prune(line)
  }

  /** A bucket has a folder even while nothing is in it. False where it had one already. */
  putBucket(id) {
    const folder = this.#descend(`/${id}`, true).pop()
    if (folder.isBucket) return false
    folder.isBucket = true
    return true
  }

  removeBucket(id) {
    const line = this.#descend(`/${id}`, false)
    line[line.length - 1].isBucket = false
    this.#prune(line)
  }

  /** The names of the streams known in a bucket. */
  inBucket(id) {
    const folder = this.#root.children.get(`/${id}`)
    return folder ? Array.from(folder.children.values(), (node) => node.path) : []
  }

  /** Folders that hold nothing any more go. */
  #prune(line) {
    for (let i = line.length - 1; i > 0 && line[i].size === 0 && !line[i].isBucket; i -= 1) {
      if (line[i].open) this.#unfolded.add(line[i].path)
      line[i - 1].remove(line[i])
    }
  }

  /** The nodes from the root to `path`. */
  #descend(path, make) {
    const line = [this.#root]
    let node = this.#root
    for (const name of segments(path)) {
      let child = node.children.get(name)
      if (!child) {
        if (!make) break
        child = new Folder(name, node.path ? `${node.path}/${name}` : name, node.depth + 1)
        child.open = this.#unfolded.has(child.path)
        node.add(child)
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
    visit(this.#root)
    return rows
  }

  /** All nodes, in order of name. */
  *nodes(folder = this.#root) {
    for (const child of folder.ordered()) {
      yield child
      if (child.children.size) yield* this.nodes(child)
    }
  }

  /** Open every folder above `name`. */
  reveal(name) {
    for (const folder of this.#descend(name, false).slice(0, -1)) folder.open = true
  }

  unfold() {
    for (const node of this.nodes()) node.open = true
  }
}
