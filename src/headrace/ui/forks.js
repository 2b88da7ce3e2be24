// The forks of the open stream as a tree: what it was forked from above it, its forks and theirs
// below. Asked for again when the forks of the stream itself have changed.

import { h, icon } from "./dom.js"
import { count, plural } from "./format.js"
import { parseOffset } from "./stream-reader.js"

const ANCESTORS_MAX = 20
const ASKED_MAX = 40 // forks whose own forks are asked for

export class Forks {
  #ancestors = [] // nearest first: { stream, offset, deleted }
  #below = new Map() // stream -> its forks
  #seen = null // the forks that the tree was made of

  /** `goTo(stream)` opens one. */
  constructor(server, goTo) {
    this.server = server
    this.goTo = goTo
  }

  clear() {
    this.#ancestors = []
    this.#below = new Map()
    this.#seen = null
  }

  /** Finds what is above and below the stream; true where that is news. */
  async look(about) {
    const seen = JSON.stringify([about.forked_from, about.forks])
    if (seen === this.#seen) return false
    this.#seen = seen
    const ancestors = await this.#findAncestors(about.forked_from)
    const below = await this.#findBelow(about.forks)
    if (seen !== this.#seen) return false // another stream by now
    this.#ancestors = ancestors
    this.#below = below
    return true
  }

  async #findAncestors(from) {
    const line = []
    while (from && line.length < ANCESTORS_MAX) {
      const ancestor = { ...from, deleted: false }
      line.push(ancestor)
      try {
        from = (await this.#ask(from.stream)).forked_from
      } catch {
        ancestor.deleted = true // or it cannot be asked: the line ends here in any case
        from = null
      }
    }
    return line
  }

  async #findBelow(forks) {
    const below = new Map()
    const waiting = forks.filter(hasForks)
    for (let asked = 0; waiting.length && asked < ASKED_MAX; asked += 1) {
      const { stream } = waiting.shift()
      try {
        below.set(stream, (await this.#ask(stream)).forks)
      } catch {
        continue // gone meanwhile
      }
      waiting.push(...below.get(stream).filter(hasForks))
    }
    return below
  }

  #ask(name) {
    return this.server.json(this.server.stream(name).inspectionPath)
  }

  /** The tree around `about`; null where there is none. */
  tree(about) {
    if (!about.forked_from && !about.forks.length) return null
    const here = h("li", { class: "here" }, h("span", {}, icon("fork"), about.stream), this.#list(about.forks))
    const inner = this.#ancestors.reduce((below, ancestor) => h("li", {}, this.#link(ancestor), h("ul", {}, below)), here)
    return h("ul", { class: "forks" }, inner)
  }

  #list(forks) {
    if (!forks.length) return null
    return h("ul", {}, forks.map((fork) => h("li", {}, this.#link(fork), this.#list(this.#below.get(fork.stream) ?? []))))
  }

  #link({ stream, offset, deleted, fork_count }) {
    const at = offset ? h("small", { class: "dim mono" }, `at ${count(parseOffset(offset).messages)}`) : null
    if (deleted) return h("span", { class: "dim" }, stream, " (deleted) ", at)
    const untold = fork_count && !this.#below.has(stream) ? h("small", { class: "dim" }, ` ${plural(fork_count, "fork")}`) : null
    return h("span", {}, h("button", { type: "button", class: "link", on: { click: () => this.goTo(this.server.stream(stream)) } }, stream), " ", at, untold)
  }
}

const hasForks = (fork) => fork.fork_count > 0 && !fork.deleted
