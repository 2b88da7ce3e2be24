// The messages of one stream that this page holds, and the search through them.

import { formatOffset } from "./stream-reader.js"

const HELD_MAX = 400_000
const HELD_BYTES_MAX = 128 * 1024 * 1024
const DROPPED_AT_ONCE = 0.25 // of what is held, so that dropping is rare
const SLICE_MS = 8

export class Messages extends EventTarget {
  constructor() {
    super()
    this.clear(null)
  }

  /** Forget everything; the next batch may begin anywhere. */
  clear(first) {
    this.items = [] // { size, data, number: messages before it, at: bytes before it }
    this.first = first // the position before items[0]
    this.next = first === null ? null : formatOffset(first.messages, first.bytes)
    this.bytes = 0
    this.dispatchEvent(new Event("reset"))
  }

  append({ start, messages, next }) {
    if (this.first === null) this.first = start
    this.#place(start, messages)
    for (const message of messages) this.items.push(message)
    this.next = next
    if (this.items.length > HELD_MAX || this.bytes > HELD_BYTES_MAX) this.#drop()
    this.dispatchEvent(new CustomEvent("append", { detail: messages.length }))
  }

  /** Messages that come before the first held. */
  prepend({ start, messages }) {
    this.#place(start, messages)
    this.items = messages.concat(this.items)
    this.first = start
    this.dispatchEvent(new CustomEvent("prepend", { detail: messages.length }))
  }

  /** Note where messages stand that follow each other from `start` on. */
  #place(start, messages) {
    let at = start.bytes
    messages.forEach((message, i) => {
      message.number = start.messages + i
      message.at = at
      at += message.size
    })
    this.bytes += at - start.bytes
  }

  #drop() {
    const gone = this.items.splice(0, Math.ceil(this.items.length * DROPPED_AT_ONCE))
    for (const message of gone) this.bytes -= message.size
    const head = this.items[0]
    this.first = { messages: this.first.messages + gone.length, bytes: head.at }
    this.dispatchEvent(new CustomEvent("drop", { detail: gone.length }))
  }

  get length() {
    return this.items.length
  }

  number(index) {
    return this.first.messages + index
  }

  offset(index) {
    const { number, at } = this.items[index]
    return formatOffset(number, at)
  }
}

export function textOf(message) {
  return typeof message.data === "string" ? message.data : new TextDecoder().decode(message.data)
}

export function bytesOf(message) {
  return typeof message.data === "string" ? new TextEncoder().encode(message.data) : message.data
}

/** Which messages are wanted, found a few milliseconds at a time. */
export class Search {
  #done = 0

  /** `matches` judges a message's text; `needle` is what to mark in it, if that is a text. */
  constructor(messages, { matches, needle = null }, changed) {
    this.messages = messages
    this.matches = matches
    this.needle = needle
    this.changed = changed
    this.found = [] // indexes
    this.stopped = false
    this.#go()
  }

  get finished() {
    return this.#done >= this.messages.length
  }

  /** More messages came. */
  more() {
    this.#go()
  }

  stop() {
    this.stopped = true
  }

  async #go() {
    if (this.running || this.stopped) return
    this.running = true
    while (!this.stopped && !this.finished) {
      const until = performance.now() + SLICE_MS
      const { items } = this.messages
      while (this.#done < items.length && performance.now() < until) {
        if (this.matches(textOf(items[this.#done]))) this.found.push(this.#done)
        this.#done += 1
      }
      this.changed()
      await new Promise((resolve) => setTimeout(resolve, 0))
    }
    this.running = false
    if (!this.stopped) this.changed()
  }
}
