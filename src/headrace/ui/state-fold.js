// Change messages folded into the rows they leave, as docs/state.md says, and the snapshots of a
// state that such a fold may begin with.

import { mediaType } from "./stream-reader.js"

export const STATE_MEDIA_TYPE = "application/vnd.headrace.state+json"
const SETS = new Set(["insert", "update", "upsert", "set"])
const REMOVALS = new Set(["delete", "remove"])

/** A message as a change, from its text. */
export function parseChange(text) {
  try {
    return changeOf(JSON.parse(text))
  } catch {
    return null
  }
}

/** A message as a change: { type, key, operation, value, unchanged, was }, { control }, or null if it is none. */
export function changeOf(message) {
  if (message === null || typeof message !== "object") return null
  const { type, key, value, headers } = message
  if (headers?.control !== undefined) return { control: headers.control }
  const operation = headers?.operation ?? message.operation
  if (typeof type !== "string" || type === "" || typeof key !== "string") return null
  return SETS.has(operation) || REMOVALS.has(operation) || operation === "append"
    ? { type, key, operation, value, unchanged: headers?.unchanged, was: headers?.was }
    : null
}

/** Rows by type and key: { type, key, value, operation, changedBy, changes }. */
export class Materialised {
  #incoming = null // what stands between snapshot-start and snapshot-end

  constructor() {
    this.rows = new Map() // "type\0key" -> row
    this.ignored = 0
  }

  apply(text, number) {
    this.take(parseChange(text), number)
  }

  take(change, number) {
    if (change === null) this.ignored += 1
    else if (change.control !== undefined) this.#control(change.control)
    else this.#change(this.#incoming ?? this.rows, change, number)
  }

  /** Become what a snapshot says: type -> key -> value. No message is known to have made it. */
  load(collections) {
    this.rows = new Map()
    for (const [type, entities] of Object.entries(collections)) {
      for (const [key, value] of Object.entries(entities)) {
        this.rows.set(`${type}\0${key}`, { type, key, value, operation: "snapshot", changedBy: null, changes: 0 })
      }
    }
  }

  #control(control) {
    if (control === "reset") {
      this.rows.clear()
      this.#incoming = null
    } else if (control === "snapshot-start") {
      this.#incoming = new Map()
    } else if (control === "snapshot-end" && this.#incoming) {
      this.rows = this.#incoming
      this.#incoming = null
    }
  }

  #change(rows, { type, key, operation, value, unchanged, was }, number) {
    const id = `${type}\0${key}`
    const row = rows.get(id)
    if (REMOVALS.has(operation)) {
      rows.delete(id)
      return
    }
    const changes = (row?.changes ?? 0) + 1
    const before = typeof was === "string" ? rows.get(`${type}\0${was}`) : row
    const kept = operation === "append" ? joined(row?.value, value) : completed(value, unchanged, before?.value)
    rows.set(id, { type, key, value: kept, changedBy: number, operation, changes })
  }
}

/** A row with the columns that a change left out, since it did not touch them. */
function completed(value, unchanged, before) {
  if (!Array.isArray(unchanged) || !isObject(value) || !isObject(before)) return value
  const kept = Object.entries(before).filter(([name]) => unchanged.includes(name))
  return { ...Object.fromEntries(kept), ...value }
}

/** What an `append` leaves: text and lists grow, objects grow field by field. */
function joined(before, more) {
  if (typeof before === "string" && typeof more === "string") return before + more
  if (Array.isArray(before)) return before.concat(more)
  if (!isObject(before) || !isObject(more)) return more
  const grown = Object.entries(more).map(([name, part]) => [name, joined(Object.hasOwn(before, name) ? before[name] : undefined, part)])
  return Object.fromEntries([...Object.entries(before), ...grown])
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value)

/** The state that a stream's snapshot at `offset` holds, type -> key -> value; null if it is no state. */
export async function readState(server, stream, offset) {
  const response = await server.request("GET", `${stream.path}/snapshot/${encodeURIComponent(offset)}`)
  if (mediaType(response.headers.get("content-type")) !== STATE_MEDIA_TYPE) return null
  const { collections } = await response.json()
  return isObject(collections) && Object.values(collections).every(isObject) ? collections : null
}

/** The offset of a stream's latest snapshot; null where there is none. */
export async function snapshotOffset(server, stream) {
  if (!stream.isBucketed) return null
  const head = await server.request("HEAD", stream.path)
  return head.headers.get("stream-snapshot-offset")
}
