// The left side: streams as a tree, with search, state and rate; it follows the registry.

import { h, icon, iconButton, replace } from "./dom.js"
import { count, countdown, markText, plural } from "./format.js"
import { Rows } from "./virtual-list.js"
import { inSlices } from "./chunked-work.js"
import { sparkline } from "./charts.js"

const ROW_HEIGHT = 30
const AT_ONCE_MAX = 30 // a tree this small shows itself whole

export class StreamList {
  #nodes = []
  #needle = ""
  #found = null // the search that is under way
  #active = null // path of the row the keyboard is on
  #selected = null // path of the open stream
  #unfolded = false
  #revealed = false // whether the open stream's row has been brought into sight

  constructor(server, catalogue, statuses, { open, openBucket, create, createBucket }) {
    this.server = server
    this.catalogue = catalogue
    this.statuses = statuses
    this.open = open
    this.openBucket = openBucket
    this.search = h("input", {
      type: "search",
      placeholder: "Search",
      "aria-label": "Search streams",
      autocomplete: "off",
      spellcheck: "false",
      on: { input: () => this.#find(), keydown: (event) => this.#searchKey(event) },
    })
    this.spacer = h("div", { class: "spacer", role: "presentation" })
    this.tree = h(
      "div",
      { class: "tree", role: "tree", tabindex: "0", "aria-label": "Streams", on: { keydown: (e) => this.#key(e) } },
      this.spacer,
    )
    this.summary = h("p", { class: "list-summary", role: "status" }, "Reading the registry …")
    this.empty = h("div", { class: "list-empty", hidden: true })
    this.element = h(
      "nav",
      { class: "list", "aria-label": "Streams" },
      h(
        "div",
        { class: "list-tools" },
        h("label", { class: "search" }, icon("search"), this.search, h("kbd", { "aria-hidden": "true" }, "/")),
        h(
          "button",
          { type: "button", class: "primary", title: "Create a stream (n)", on: { click: create } },
          icon("plus"),
          "New",
        ),
        iconButton("bucket", "Create a bucket", createBucket),
      ),
      h("div", { class: "list-body" }, this.tree, this.empty),
      this.summary,
    )
    this.rows = new Rows(this.tree, this.spacer, ROW_HEIGHT, (index) => this.#row(index))
    this.rows.onDraw = (first, end) => this.#seen(first, end)
    catalogue.addEventListener("change", () => this.refresh())
    statuses.addEventListener("change", () => this.#showStatuses())
    server.addEventListener("presence", () => this.#showStatuses())
  }

  /** The catalogue changed, or folders were opened. */
  refresh() {
    const { catalogue } = this
    if (!this.#unfolded && catalogue.complete) this.#unfold()
    if (this.#needle) {
      this.#search()
      return
    }
    this.#found = null
    this.#show(catalogue.tree.rows())
    if (!this.#revealed) this.#reveal()
  }

  /** Look through all names, a few milliseconds at a time; once more if they change meanwhile. */
  async #search() {
    const needle = this.#needle
    if (this.#found?.needle === needle) {
      this.#found.again = true
      return
    }
    const search = (this.#found = { needle, again: true })
    while (search.again && this.#found === search) {
      search.again = false
      const found = []
      await inSlices(this.catalogue.tree.nodes(), (node) => {
        if (node.entry && node.path.toLowerCase().includes(needle)) found.push(node)
        return this.#found === search
      })
      if (this.#found === search) this.#show(found)
    }
    if (this.#found === search) this.#found = null
  }

  #show(nodes) {
    const { catalogue } = this
    this.#nodes = nodes
    this.rows.reset()
    this.rows.count = this.#nodes.length
    const total = catalogue.entries.size
    this.#showEmpty()
    replace(
      this.summary,
      catalogue.failure
        ? `The registry cannot be read: ${catalogue.failure.message}`
        : this.#needle
          ? `${count(this.#nodes.length)} of ${plural(total, "stream")}`
          : total || catalogue.loaded
            ? plural(total, "stream")
            : "Reading the registry …",
    )
  }

  #showEmpty() {
    const { catalogue } = this
    this.empty.hidden = this.#nodes.length > 0 || !catalogue.complete || catalogue.failure !== null
    if (this.empty.hidden) return
    replace(this.empty, this.#needle ? h("p", {}, `No stream has “${this.#needle}” in its name.`) : h("p", {}, "No streams yet. “New” creates one."))
  }

  /** Once, when everything is known: a small tree is shown whole. */
  #unfold() {
    this.#unfolded = true
    if (this.catalogue.entries.size <= AT_ONCE_MAX) this.catalogue.tree.unfold()
  }

  select(name) {
    this.#selected = name
    if (name !== null) this.#active = name
    this.#revealed = name === null
    this.refresh()
  }

  /** Open the folders above the open stream, as soon as the registry has told of it. */
  #reveal() {
    if (!this.catalogue.entries.has(this.#selected)) return
    this.#revealed = true
    this.catalogue.tree.reveal(this.#selected)
    this.#nodes = this.catalogue.tree.rows()
    this.rows.count = this.#nodes.length
    this.rows.scrollTo(this.#nodes.findIndex((node) => node.path === this.#selected))
  }

  focusSearch() {
    this.search.focus()
    this.search.select()
  }

  #find() {
    this.#needle = this.search.value.trim().toLowerCase()
    this.tree.scrollTop = 0
    this.refresh()
  }

  #searchKey(event) {
    if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault()
      this.tree.focus()
      this.#move(0)
      if (event.key === "Enter" && this.#nodes.length) this.#activate(this.#nodes[0])
    } else if (event.key === "Escape") {
      this.search.value = ""
      this.#find()
      this.tree.focus()
    }
  }

  #key(event) {
    const at = this.#nodes.findIndex((node) => node.path === this.#active)
    const node = this.#nodes[at]
    const page = Math.max(1, Math.floor(this.tree.clientHeight / ROW_HEIGHT) - 1)
    const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page }
    if (event.ctrlKey || event.metaKey || event.altKey) return
    if (event.key in moves) this.#move(at + moves[event.key])
    else if (event.key === "Home") this.#move(0)
    else if (event.key === "End") this.#move(this.#nodes.length - 1)
    else if (event.key === "Enter" && node) this.#activate(node)
    else if (event.key === "ArrowRight" && node?.children.size) {
      if (node.open) this.#move(at + 1)
      else this.#toggle(node)
    } else if (event.key === "ArrowLeft" && node) {
      if (node.open && node.children.size) this.#toggle(node)
      else this.#move(this.#nodes.findIndex((other) => node.path.startsWith(`${other.path}/`) && other.depth === node.depth - 1))
    } else return
    event.preventDefault()
  }

  #move(to) {
    if (!this.#nodes.length) return
    const index = Math.max(0, Math.min(this.#nodes.length - 1, to))
    this.#active = this.#nodes[index].path
    this.rows.scrollTo(index)
    this.rows.refresh()
    this.rows.draw()
  }

  #activate(node) {
    this.#active = node.path
    if (node.entry) this.open(node.path)
    else if (node.isBucket) this.#activateBucket(node)
    else this.#toggle(node)
  }

  /** A bucket has a page of its own; what is in it shows below it, too. */
  #activateBucket(node) {
    if (node.path === this.#selected || !node.open) this.#toggle(node)
    this.openBucket(node.path.slice(1))
  }

  #toggle(node) {
    node.open = !node.open
    this.#active = node.path
    this.refresh()
  }

  #row(index) {
    const node = this.#nodes[index]
    const isFolder = node.children.size > 0 && !this.#needle
    const id = `row-${index}`
    const active = node.path === this.#active
    if (active) this.tree.setAttribute("aria-activedescendant", id)
    const depth = this.#needle ? 0 : node.depth
    const row = h(
      "div",
      {
        id,
        class: `tree-row${active ? " active" : ""}${node.entry ? "" : " folder"}`,
        role: "treeitem",
        "aria-level": depth + 1,
        "aria-posinset": index + 1,
        "aria-setsize": this.#nodes.length,
        "aria-expanded": isFolder ? String(node.open) : null,
        "aria-selected": String(node.path === this.#selected),
        title: node.path,
        on: { click: (event) => this.#click(event, node) },
      },
      h("span", { class: `twist${node.open ? " open" : ""}` }, isFolder ? icon("chevron") : null),
      node.isBucket ? h("span", { class: "mini", title: "bucket" }, icon("bucket")) : null,
      h("span", { class: "state" }),
      h("span", { class: "tree-name" }, this.#needle ? markText(node.path, this.#needle) : node.name),
      h("span", { class: "tree-facts" }),
    )
    row.style.setProperty("--depth", depth)
    this.#showStatus(row, node)
    return row
  }

  #click(event, node) {
    this.tree.focus({ preventScroll: true })
    if (node.children.size && !this.#needle && event.target.closest(".twist")) this.#toggle(node)
    else this.#activate(node)
  }

  #seen(first, end) {
    const names = this.#nodes.slice(first, end).filter((node) => node.entry)
    this.statuses.want(names.map((node) => node.path), this)
  }

  #showStatuses() {
    const [first, end] = this.rows.inSight
    for (let at = first; at < end; at += 1) {
      const row = this.rows.element(at)
      if (row && this.#nodes[at]) this.#showStatus(row, this.#nodes[at])
    }
  }

  #showStatus(row, node) {
    const facts = row.querySelector(".tree-facts")
    if (!node.entry) {
      replace(facts, h("span", { class: "dim" }, count(node.size)))
      return
    }
    const status = this.statuses.get(node.path)
    if (!status) return
    const word = this.server.away ? "unknown" : stateWord(status)
    replace(row.querySelector(".state"), h("span", { class: `dot ${word}`, role: "img", "aria-label": word, title: word }))
    replace(
      facts,
      status.forked || status.forks ? h("span", { class: "mini", title: status.forked ? "forked" : "has forks" }, icon("fork")) : null,
      status.rates.length > 1 ? sparkline(status.rates) : null,
      h("span", { class: "tail", title: expiry(status) }, count(status.messages)),
    )
  }
}

function stateWord(status) {
  if (status.closed) return "closed"
  return status.expires ? "expiring" : "open"
}

function expiry(status) {
  const size = plural(status.messages, "message")
  return status.expiresAt ? `${size}; expires in ${countdown(status.expiresAt - Date.now())}` : size
}
