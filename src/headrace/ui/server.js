// The server as this page knows it: where its surfaces are, the token, whether it is there.
//
// A request ends as a response, a Problem (the server refused), Away (nothing answered; `back()`
// tells when something does) or the caller's own abort.

const RETRY_MS = [250, 500, 1000, 2000, 4000]
const OWN_TYPES = "urn:headrace:problem:"
const GATEWAY_FAILURES = new Set([502, 503, 504])

export class Problem extends Error {
  constructor(status, document) {
    super(document.detail ?? document.title ?? `The server answered ${status}.`)
    this.status = status
    this.type = String(document.type ?? "").replace(OWN_TYPES, "")
    this.facts = document
  }
}

export class Away extends Error {
  constructor() {
    super("The server does not answer.")
  }
}

/** A stream by its name: `logs/today`, or `/bucket/stream` for one in a bucket. */
export class Stream {
  constructor(settings, name) {
    this.settings = settings
    this.name = name
    this.isBucketed = name.startsWith("/")
  }

  /** Where the stream is, below the server's root. */
  get path() {
    const { streamRoot, bucketRoot } = this.settings
    return this.isBucketed ? bucketRoot + encodeName(this.name) : `${streamRoot}/${encodeName(this.name)}`
  }

  /** Where the server describes it. */
  get inspectionPath() {
    const where = this.isBucketed ? "buckets" : "streams/"
    return `${this.settings.streamRoot}/__ds/${where}${encodeName(this.name)}`
  }

  /** Nothing can be written to the registry. */
  get isReadOnly() {
    return this.name === "__registry__"
  }
}

export const encodeName = (name) => name.split("/").map(encodeURIComponent).join("/")

export class Server extends EventTarget {
  #token = null
  #asking = null
  #declined = false // to give a token; then nobody is asked until one is given
  #watching = null

  constructor(base, settings) {
    super()
    this.base = base
    this.settings = settings
    this.away = false
    this.refused = false // for who is asking: the streams are there, and not for this page
  }

  static async find() {
    const here = new URL(".", location.href)
    const response = await fetch(new URL("settings.json", here), { cache: "no-cache" })
    const base = new URL("..", here).href.replace(/\/$/, "")
    return new Server(base, await response.json())
  }

  stream(name) {
    return new Stream(this.settings, name)
  }

  url(path, query = {}) {
    const search = new URLSearchParams(query).toString()
    return this.base + path + (search ? `?${search}` : "")
  }

  /** The path by which the server itself knows a stream, its mount included. */
  serverPath(stream) {
    return new URL(this.url(stream.path)).pathname
  }

  get hasToken() {
    return this.#token !== null
  }

  /** Kept in this variable and nowhere else; a reload forgets it. */
  set token(value) {
    this.#token = value || null
    this.#declined = false
    this.dispatchEvent(new Event("token"))
  }

  async request(method, path, { query, headers = {}, body, signal } = {}) {
    for (;;) {
      const token = this.#token
      try {
        const response = await this.#send(method, this.url(path, query), headers, body, signal)
        this.#noteIdentity(path, false)
        return response
      } catch (error) {
        if (error instanceof Problem) this.#noteIdentity(path, isAboutIdentity(error))
        if (!isAboutIdentity(error)) throw error
        if (token !== this.#token) continue // refused for a token that has been replaced since
        if (this.#declined) throw error
        const refused = method === "HEAD" ? await this.#reason(path, query, error) : error
        refused.sentToken = token !== null
        if (!(await this.#askForToken(refused))) throw refused
      }
    }
  }

  /** What the streams' own paths answer counts: a proxy may well keep /metrics to itself. */
  #noteIdentity(path, refused) {
    if (refused === this.refused || path === "/metrics") return
    this.refused = refused
    this.dispatchEvent(new Event("presence"))
  }

  /** Why a HEAD was refused: its answer has no body to say it. */
  async #reason(path, query, refused) {
    try {
      await this.#send("GET", this.url(path, query), {})
    } catch (error) {
      if (isAboutIdentity(error)) return error
    }
    return refused
  }

  async #send(method, url, headers, body, signal) {
    const sent = this.#token ? { ...headers, Authorization: `Bearer ${this.#token}` } : headers
    let response
    try {
      response = await fetch(url, { method, headers: sent, body, signal, cache: "no-store", credentials: "omit" })
    } catch (error) {
      if (signal?.aborted) throw error
      throw this.lost()
    }
    if (GATEWAY_FAILURES.has(response.status) && !isProblem(response)) throw this.lost()
    if (response.ok || response.status === 304) return response
    const problem = new Problem(response.status, await document_(response))
    if (problem.type === "draining") throw this.lost()
    throw Object.assign(problem, { headers: response.headers })
  }

  /** One question at a time, however many requests were refused. True: a token was given. */
  #askForToken(refused) {
    this.#asking ??= new Promise((resolve) => {
      const detail = { refused, answer: resolve }
      this.dispatchEvent(new CustomEvent("token-needed", { detail }))
    })
      .then((given) => {
        this.#declined = !given
        return given
      })
      .finally(() => (this.#asking = null))
    return this.#asking
  }

  async json(path, options) {
    return (await this.request("GET", path, options)).json()
  }

  /** A live read broke off or a request found nobody: note it, and look out for the server. */
  lost() {
    if (!this.away) {
      this.away = true
      this.#watching = this.#watch()
      this.dispatchEvent(new Event("presence"))
    }
    return new Away()
  }

  /** Resolves when the server answers again; at once if it does. */
  async back(signal) {
    if (this.away) await this.#watching
    signal?.throwIfAborted()
  }

  async #watch() {
    for (let tries = 0; ; tries += 1) {
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]))
      try {
        const response = await fetch(this.url("/healthz"), { cache: "no-store", credentials: "omit" })
        if (!GATEWAY_FAILURES.has(response.status)) break
      } catch {
        continue
      }
    }
    this.away = false
    this.dispatchEvent(new Event("presence"))
  }

  /** A command that does the same from a shell. It names the token's variable, not the token. */
  curl(method, url, headers = {}, body = null) {
    const parts = ["curl"]
    if (method === "HEAD") parts.push("--head")
    else if (method !== "GET") parts.push("-X", method)
    if (url.includes("live=sse")) parts.push("-N")
    parts.push(quote(url))
    for (const [name, value] of Object.entries(headers)) parts.push("-H", quote(`${name}: ${value}`))
    if (this.hasToken) parts.push("-H", '"Authorization: Bearer $TOKEN"')
    if (body instanceof Uint8Array) {
      const octal = Array.from(body, (byte) => `\\${byte.toString(8).padStart(3, "0")}`).join("")
      return `printf '${octal}' | ${parts.join(" ")} --data-binary @-`
    }
    if (body !== null) parts.push("--data-raw", quote(body)) // a body may begin with @
    return parts.join(" ")
  }
}

const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`

/** Refused for who is asking: by 401, or by a 403 that is a proxy's and not one of the server's own. */
const isAboutIdentity = (error) =>
  error instanceof Problem && (error.status === 401 || (error.status === 403 && !String(error.facts.type).startsWith(OWN_TYPES)))

const isProblem = (response) => (response.headers.get("content-type") ?? "").startsWith("application/problem+json")

async function document_(response) {
  try {
    return await response.json()
  } catch {
    return {}
  }
}
