// A Yjs document on a stream: every change is a message, and every client applies all of them.
//
//     headrace serve
//     curl -X PUT http://localhost:4437/documents
//     curl -X PUT http://localhost:4437/documents/notes -H 'Content-Type: application/json'
//     node collaborative-document.mjs http://localhost:4437/documents/notes alice
//
// Type lines to append to the document. Start a second one in another terminal.
//
// Yjs merges changes in any order, and applying one twice changes nothing. So the provider may send
// a change again if an answer was lost, and needs no producer id.
import { createInterface } from "node:readline"
import { pathToFileURL } from "node:url"
import * as Y from "yjs"
import { follow } from "./follow.mjs"

export { Y } // one program must load Yjs only once

export class StreamProvider {
  /** Connects `doc` to the JSON stream at `url`. `caughtUp` resolves once its history is applied. */
  constructor(url, doc) {
    this.url = url
    this.doc = doc
    this.offset = null
    this._ended = new AbortController()
    this._pending = []
    this._sending = null
    // What the document held before: once caught up, the stream gets what it lacks of it.
    this._remote = doc.store.clients.size > 0 ? new Y.Doc() : null
    this._onUpdate = (update, origin) => origin !== this && this._send(update)
    this.caughtUp = new Promise((resolve, reject) => {
      this.done = this._receive(resolve).catch((error) => (reject(error), this.destroy()))
    })
    doc.on("update", this._onUpdate)
  }

  async _receive(caughtUp) {
    while (!this._ended.signal.aborted) {
      try {
        return await this._follow(await this._loadSnapshot(), caughtUp)
      } catch (error) {
        // A snapshot has replaced the history before it while this client was away: load it.
        if (error.status !== 410 && !this._ended.signal.aborted) throw error
      }
    }
  }

  async _follow(offset, caughtUp) {
    for await (const batch of follow(this.url, { offset, signal: this._ended.signal })) {
      // One transaction, so that an editor redraws once for many changes.
      this.doc.transact(() => {
        for (const message of batch.messages) this._apply(decode(message))
      }, this)
      this.offset = batch.offset
      if (batch.upToDate) caughtUp(this._sendWhatIsMissing())
    }
  }

  _apply(update) {
    Y.applyUpdate(this.doc, update, this)
    if (this._remote) Y.applyUpdate(this._remote, update)
  }

  _sendWhatIsMissing() {
    if (!this._remote) return
    this._send(Y.encodeStateAsUpdate(this.doc, Y.encodeStateVector(this._remote)))
    this._remote = null
  }

  /** The latest snapshot replaces the history before its offset; a stream need not have one. */
  async _loadSnapshot() {
    const answer = await fetch(`${this.url}/snapshot`, { signal: this._ended.signal })
    if (answer.status === 404) return "-1"
    if (!answer.ok) throw new Error(`${answer.url} answers ${answer.status}`)
    this._apply(new Uint8Array(await answer.arrayBuffer()))
    return answer.headers.get("stream-next-offset")
  }

  /** Publishes the document as a snapshot: history up to here need not be read or kept any more. */
  async compact() {
    await this.flushed()
    const state = Y.encodeStateAsUpdate(this.doc)
    const answer = await fetch(`${this.url}/snapshot/${this.offset}`, { method: "PUT", body: state })
    // Another client may have been faster: 410 says that history is already trimmed further.
    if (!answer.ok && answer.status !== 410) throw new Error(`no snapshot: ${await answer.text()}`)
  }

  _send(update) {
    this._pending.push(encode(update))
    this._sending ??= this._sendPending().finally(() => (this._sending = null))
  }

  /** Sends what has gathered, as one append; while that is under way, more gathers. */
  async _sendPending() {
    let delayMs = 100
    while (this._pending.length && !this._ended.signal.aborted) {
      const batch = this._pending.slice()
      const headers = { "Content-Type": "application/json" }
      const sent = await fetch(this.url, { method: "POST", headers, body: JSON.stringify(batch) })
        .then((answer) => answer.ok)
        .catch(() => false)
      if (sent) {
        this._pending.splice(0, batch.length)
        delayMs = 100
      } else {
        await new Promise((resolve) => setTimeout(resolve, delayMs))
        delayMs = Math.min(delayMs * 2, 10_000)
      }
    }
  }

  /** Resolves when every local change is in the stream. */
  async flushed() {
    while (this._sending) await this._sending
  }

  destroy() {
    this.doc.off("update", this._onUpdate)
    this._ended.abort()
  }
}

// Base64 within JSON: a stream of bytes would not show where one change ends.
const encode = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))
const decode = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0))

async function main(url, name) {
  const doc = new Y.Doc()
  const text = doc.getText("text")
  const provider = new StreamProvider(url, doc)
  await provider.caughtUp
  process.stdout.write(text.toString())
  text.observe((event, transaction) => transaction.local || console.log(text.toString()))
  for await (const line of createInterface({ input: process.stdin })) {
    text.insert(text.length, `${name}: ${line}\n`)
  }
  await provider.flushed()
  provider.destroy()
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  await main(process.argv[2], process.argv[3] ?? "anonymous")
}
