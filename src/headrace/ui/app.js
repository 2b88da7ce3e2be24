// The page: its parts, what the address names, the keys, the theme.

import { h, icon, iconButton, replace, toast } from "./dom.js"
import { BucketPage } from "./bucket-page.js"
import { Buckets } from "./buckets.js"
import { Catalogue } from "./stream-catalog.js"
import { Details } from "./details.js"
import { bucketDialog, createDialog, helpDialog, tokenDialog } from "./dialogs.js"
import { FirstSteps } from "./first-steps.js"
import { StreamList } from "./stream-list.js"
import { Overview } from "./overview.js"
import { Server, encodeName } from "./server.js"
import { StreamView } from "./stream-view.js"
import { Statuses } from "./status-poller.js"

const THEMES = ["auto", "dark", "light"]
const STREAM_PREFIX = "#/stream/"
const BUCKET_PREFIX = "#/bucket/"

class App {
  constructor(server) {
    this.server = server
    this.catalogue = new Catalogue(server)
    this.buckets = new Buckets(server, this.catalogue)
    this.statuses = new Statuses(server)
    const goTo = (stream) => this.goTo(stream)
    const open = (name) => this.goTo(server.stream(name))
    this.list = new StreamList(server, this.catalogue, this.statuses, {
      open,
      openBucket: (id) => this.#show(BUCKET_PREFIX + encodeURIComponent(id)),
      create: () => this.create(),
      createBucket: () => bucketDialog(server, "", () => this.buckets.soon()),
    })
    this.bucketPage = new BucketPage(server, this.statuses, {
      open,
      create: (prefix) => this.create(prefix),
      back: () => this.pane("list"),
      gone: () => (this.buckets.soon(), this.goTo(null)),
    })
    this.view = new StreamView(server, { back: () => this.pane("list"), details: () => this.pane("details"), goTo })
    this.details = new Details(server, this.view, { back: () => this.pane("main"), goTo })
    const firstSteps = new FirstSteps(server, this.catalogue, () => this.create())
    this.overview = new Overview(server, (name) => this.catalogue.entries.has(name), firstSteps)
    this.presence = h("div", { class: "presence", role: "status" })
    this.tokenButton = iconButton("key", "Token", () => tokenDialog(server, null))
    this.#build()
    server.addEventListener("presence", () => this.#showPresence())
    server.addEventListener("token", () => this.#tryAgain())
    server.addEventListener("token-needed", async ({ detail }) => detail.answer(await tokenDialog(server, detail.refused)))
    this.#awaitReturn()
    addEventListener("hashchange", () => this.route())
    addEventListener("keydown", (event) => this.#key(event))
    this.#theme(localStorage.getItem("theme") ?? "auto")
    this.#showPresence()
  }

  #build() {
    replace(
      document.getElementById("app"),
      h(
        "header",
        { class: "top" },
        h("h1", { class: "site" }, h("a", { class: "brand", href: "#/", title: "Overview (o)", "aria-label": "Headrace" }, h("img", { src: "icon.svg", alt: "", width: "22", height: "22" }), h("span", {}, "Headrace"))),
        this.presence,
        h("span", { class: "grow" }),
        h("a", { class: "top-link", href: "#/", "aria-label": "Overview" }, icon("chart"), h("span", {}, "Overview")),
        this.tokenButton,
        iconButton("theme", "Theme (t)", () => this.nextTheme()),
        h("button", { type: "button", class: "icon-button", title: "Keys (?)", "aria-label": "Keys", on: { click: helpDialog } }, h("kbd", { "aria-hidden": "true" }, "?")),
      ),
      h("div", { class: "panes" }, this.list.element, h("main", { class: "main" }, this.overview.element, this.bucketPage.element, this.view.element), this.details.element),
    )
  }

  start() {
    this.catalogue.start()
    this.buckets.start()
    this.route()
  }

  /** Show what the address names. */
  route() {
    const { hash } = location
    const name = named(hash, STREAM_PREFIX)
    const bucket = named(hash, BUCKET_PREFIX)
    const stream = name ? this.server.stream(name) : null
    document.body.dataset.page = stream ? "stream" : bucket ? "bucket" : "overview"
    if (!stream && !bucket) document.title = "Headrace"
    this.overview.show(stream === null && bucket === null)
    this.bucketPage.open(bucket)
    this.view.open(stream)
    this.details.open(stream)
    this.list.select(bucket === null ? name : `/${bucket}`)
    this.pane(stream || bucket || hash === "#/" ? "main" : "list")
  }

  /** A stream that was gone and is announced again is shown again. */
  #awaitReturn() {
    const { catalogue, view } = this
    let lost = null
    view.addEventListener("gone", () => (lost = catalogue.entries.get(view.stream.name)))
    catalogue.addEventListener("change", () => {
      if (view.state.problem?.type !== "stream-not-found") return
      const found = catalogue.entries.get(view.stream.name)
      if (found && found !== lost) this.route()
    })
  }

  /** What was refused without a token is asked for with it. */
  #tryAgain() {
    this.#showPresence()
    if (this.catalogue.failure) this.catalogue.start()
    if (this.view.state.problem) this.route()
  }

  goTo(stream) {
    this.#show(stream ? STREAM_PREFIX + encodeName(stream.name) : "#/")
  }

  #show(hash) {
    if (location.hash === hash) this.route()
    else location.hash = hash
  }

  /** Ask for a stream; its name begins with `prefix`, or else with the folder of the open stream. */
  create(prefix = null) {
    const open = this.view.stream?.name ?? ""
    const proposed = prefix ?? (open.includes("/") ? open.slice(0, open.lastIndexOf("/") + 1) : "")
    createDialog(this.server, proposed, (stream) => {
      this.buckets.soon()
      this.goTo(stream)
    })
  }

  /** Which of the panes a small screen shows. */
  pane(name) {
    document.body.dataset.pane = name
  }

  #showPresence() {
    const { away, refused, hasToken } = this.server
    document.body.classList.toggle("away", away)
    this.tokenButton.classList.toggle("on", hasToken)
    const [dot, text] = away ? ["lost", "Server away. Trying again …"] : refused ? ["expiring", hasToken ? "Token refused" : "Not signed in"] : ["open", "Connected"]
    replace(this.presence, h("span", { class: `dot ${dot}` }), text)
  }

  nextTheme() {
    const theme = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]
    localStorage.setItem("theme", theme)
    this.#theme(theme)
    toast(`Theme: ${theme === "auto" ? "as the system" : theme}`)
  }

  #theme(theme) {
    document.documentElement.dataset.theme = THEMES.includes(theme) ? theme : "auto"
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return
    if (event.target.closest("input, textarea, select")) return
    const { view, list } = this
    const keys = {
      "/": () => list.focusSearch(),
      f: () => view.stream && view.focusSearch(),
      p: () => view.toggleLive(),
      g: () => view.stream && view.jumpToStart(),
      e: () => view.stream && view.jumpToEnd(),
      v: () => view.stream && view.nextMode(),
      a: () => view.stream && view.composer.focus(),
      n: () => this.create(),
      o: () => this.goTo(null),
      t: () => this.nextTheme(),
      "?": helpDialog,
    }
    const act = Object.hasOwn(keys, event.key) ? keys[event.key] : null
    if (!act) return
    event.preventDefault()
    act()
  }
}

/** The name after a prefix of the address; null where it begins otherwise, or says nothing. */
const named = (hash, prefix) => (hash.startsWith(prefix) && decode(hash.slice(prefix.length))) || null

function decode(encoded) {
  try {
    return decodeURIComponent(encoded)
  } catch {
    return encoded
  }
}

try {
  new App(await Server.find()).start()
} catch (error) {
  document.getElementById("app").replaceChildren(h("p", { class: "notice" }, `The stream browser cannot start: ${error.message}`))
  throw error
}
