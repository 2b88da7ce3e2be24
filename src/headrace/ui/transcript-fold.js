// Messages folded into the turns of a conversation: who said what, tokens put together as they
// came, tool calls with their results. Read are, each as a message of its own:
//
// - parts of an AI SDK UI message stream: {"type":"text-delta","id":…,"delta":…}
// - chunks and answers of OpenAI chat completions: {"choices":[{"delta":{…}}]}
// - events of AG-UI and TanStack AI: {"type":"TEXT_MESSAGE_CONTENT",…}
// - whole messages: {"role":…,"content":…}, also with parts, tool calls or tool results
// - State Protocol rows and session events whose value is such a message
//
// An event of SSE that holds one of these (`data: {…}`) counts as it.

import { asText, attachment, isMessage, isObject, partsOf, roleOf, toolCall } from "./transcript-parts.js"
import { Materialised, changeOf } from "./state-fold.js"

const PROBED_MAX = 50

/** Whether at least half of a stream's first messages are parts of a conversation. */
export function isTranscript(texts) {
  const transcript = new Transcript()
  const first = texts.slice(0, PROBED_MAX)
  const known = first.filter((text, at) => transcript.apply(text, at)).length
  const isSaid = ({ kind }) => kind === "text" || kind === "reasoning" || kind === "tool"
  return transcript.turns.some((turn) => turn.parts.some(isSaid)) && known * 2 >= first.length
}

/** AG-UI events as the parts of the AI SDK that say the same. */
const AG_UI = new Map(
  Object.entries({
    RUN_STARTED: () => [{ type: "start-step" }],
    TEXT_MESSAGE_START: (event) => [{ type: "start", messageId: event.messageId, role: event.role }],
    TEXT_MESSAGE_CONTENT: (event) => [{ type: "text-delta", id: event.messageId, delta: event.delta }],
    TEXT_MESSAGE_END: () => [{ type: "text-end" }],
    TOOL_CALL_START: (event) => [{ type: "tool-input-start", toolCallId: event.toolCallId, toolName: event.toolCallName ?? event.toolName }],
    TOOL_CALL_ARGS: (event) => [{ type: "tool-input-delta", toolCallId: event.toolCallId, inputTextDelta: event.delta }],
    TOOL_CALL_END: () => [{ type: "finish-step" }],
    TOOL_CALL_RESULT: (event) => [{ type: "tool-output-available", toolCallId: event.toolCallId, output: event.content }],
    RUN_FINISHED: () => [{ type: "finish" }],
    RUN_ERROR: (event) => [{ type: "error", errorText: event.message }, { type: "finish" }],
  }),
)

/** Parts of the AI SDK that change nothing to be seen here. */
const SILENT = new Set(["start-step", "finish-step", "text-end", "reasoning-end", "message-metadata"])

export class Transcript {
  #state = new Materialised() // the rows of State Protocol messages
  #byKey = new Map() // what a turn is found by -> turn
  #calls = new Map() // tool call id -> { turn, part }
  #open = null // the turn that parts without a name belong to

  /** With `plain`, text that is none of the shapes is a turn of its own: a stream of bare tokens. */
  constructor({ plain = false } = {}) {
    this.plain = plain
    this.turns = [] // { role, id, parts, from, to: numbers of messages, done }
    this.changed = new Set() // turns since the view last drew them; it empties the set
    this.ignored = 0
  }

  /** Take the message with this number; whether it was part of a conversation. */
  apply(text, number) {
    const known = valuesOf(text).map((value) => this.#take(value, number)).includes(true)
    if (!known && this.plain) this.#say(this.#turn("plain", "text", number), "text", "plain", text)
    else if (!known) this.ignored += 1
    return known
  }

  #take(value, number) {
    if (!isObject(value)) return false
    const change = changeOf(value)
    if (change !== null) return this.#change(change, number)
    if (Array.isArray(value.choices)) return this.#completion(value, number)
    if (AG_UI.has(value.type)) {
      for (const part of AG_UI.get(value.type)(value)) this.#part(part, number)
      return true
    }
    if (typeof value.type === "string" && this.#part(value, number)) return true
    if (!isMessage(value)) return false
    this.#open = null
    const key = value.id === undefined ? `message ${number}` : `id ${asText(value.id)}`
    this.#message(key, value, number)
    return true
  }

  // -- turns -------------------------------------------------------------------------------

  /** The turn of that key, made at its first message. */
  #turn(key, role, number) {
    let turn = this.#byKey.get(key)
    if (!turn) {
      turn = { key, role: roleOf(role), parts: [], from: number, to: number, done: false }
      this.#byKey.set(key, turn)
      this.turns.push(turn)
    }
    turn.to = number
    this.changed.add(turn)
    return turn
  }

  #drop(key) {
    const turn = this.#byKey.get(key)
    if (!turn) return
    this.#byKey.delete(key)
    this.turns.splice(this.turns.indexOf(turn), 1)
    this.changed.add(turn)
  }

  /** A whole message in place of what its turn held. Results go to the calls they answer. */
  #message(key, message, number) {
    const parts = partsOf(message)
    const own = parts.filter((part) => part.kind !== "result" || !this.#answer(part.id, part, number))
    if (!own.length && parts.length) return
    const turn = this.#turn(key, message.role, number)
    const opened = new Map(turn.parts.map((part, at) => [at, part.isOpen]))
    turn.role = roleOf(message.role)
    turn.done = true
    turn.parts = own.map((part, at) => ({ ...part, isOpen: opened.get(at) }))
    for (const part of turn.parts) if (part.kind === "tool") this.#calls.set(part.id, { turn, part })
  }

  /** Give a tool's result to the call; false where no such call is known. */
  #answer(id, { output, failure }, number) {
    const call = this.#calls.get(id)
    if (!call) return false
    Object.assign(call.part, { output, failure, state: failure === null ? "done" : "failed" })
    call.turn.to = Math.max(call.turn.to, number)
    this.changed.add(call.turn)
    return true
  }

  /** More of a text or of reasoning: of the part with that id, or else of the last one. */
  #say(turn, kind, id, text) {
    let part = id === undefined ? turn.parts.at(-1) : turn.parts.findLast((part) => part.id === id)
    if (part?.kind !== kind) {
      part = { kind, id, text: "" }
      turn.parts.push(part)
    }
    part.text += asText(text)
  }

  // -- the shapes --------------------------------------------------------------------------

  #change(change, number) {
    this.#state.take(change, number)
    if (change.control !== undefined) {
      this.#restate(number)
      return false
    }
    const key = `row ${change.type}\0${change.key}`
    const row = this.#state.rows.get(`${change.type}\0${change.key}`)
    if (!row) this.#drop(key)
    else if (isMessage(row.value)) this.#message(key, row.value, number)
    else return false
    return true
  }

  /** A control message may have changed every row. */
  #restate(number) {
    const gone = this.turns.filter((turn) => turn.key.startsWith("row "))
    for (const turn of gone) {
      this.#byKey.delete(turn.key)
      this.changed.add(turn)
    }
    this.turns = this.turns.filter((turn) => this.#byKey.get(turn.key) === turn)
    for (const { type, key, value } of this.#state.rows.values()) {
      if (isMessage(value)) this.#message(`row ${type}\0${key}`, value, number)
    }
  }

  /** One part of an AI SDK message stream; false if it is something else. */
  #part(part, number) {
    const { type } = part
    if (SILENT.has(type)) return true
    if (type === "start") {
      const id = part.messageId === undefined ? `start ${number}` : `id ${asText(part.messageId)}`
      this.#open = this.#turn(id, part.role ?? "assistant", number)
      return true
    }
    if (type === "finish" || type === "abort") {
      if (this.#open) Object.assign(this.#turn(this.#open.key, "assistant", number), { done: true })
      this.#open = null
      return true
    }
    const act = PARTS.get(type) ?? (typeof part.type === "string" && type.startsWith("data-") && "data" in part ? data : null)
    if (!act) return false
    this.#open ??= this.#turn(`parts ${number}`, "assistant", number)
    act(part, this.#turn(this.#open.key, "assistant", number), this)
    return true
  }

  /** For the table of parts below. */
  say(turn, kind, { id, delta }) {
    this.#say(turn, kind, id === undefined ? undefined : `${kind} ${asText(id)}`, delta)
  }

  /** The call that a part is about, made where it is the first to name it. */
  call(turn, { toolCallId, toolName }) {
    const id = asText(toolCallId)
    if (!this.#calls.has(id)) {
      const call = toolCall(id, toolName)
      turn.parts.push(call)
      this.#calls.set(id, { turn, part: call })
    }
    const { turn: owner, part } = this.#calls.get(id)
    if (toolName !== undefined) part.name = asText(toolName)
    this.changed.add(owner)
    return part
  }

  /** A chunk of a chat completion, or all of one. */
  #completion({ id, choices }, number) {
    let known = false
    for (const choice of choices.filter(isObject)) {
      const key = `completion ${asText(id ?? "")} ${asText(choice.index)}`
      if (isMessage(choice.message)) this.#message(key, choice.message, number)
      else if (isObject(choice.delta)) this.#delta(this.#turn(key, choice.delta.role ?? "assistant", number), choice)
      else continue
      known = true
    }
    return known
  }

  #delta(turn, { delta, finish_reason: finish }) {
    const reasoning = delta.reasoning_content ?? delta.reasoning
    if (typeof reasoning === "string") this.#say(turn, "reasoning", undefined, reasoning)
    if (typeof delta.content === "string" && delta.content !== "") this.#say(turn, "text", undefined, delta.content)
    if (typeof delta.refusal === "string") this.#say(turn, "text", undefined, delta.refusal)
    for (const call of Array.isArray(delta.tool_calls) ? delta.tool_calls.filter(isObject) : []) {
      let part = turn.parts.find((one) => one.kind === "tool" && one.index === call.index)
      if (!part) {
        part = { ...toolCall(call.id, call.function?.name), index: call.index }
        turn.parts.push(part)
        this.#calls.set(part.id, { turn, part })
      }
      part.input = (part.input ?? "") + asText(call.function?.arguments)
    }
    if (typeof finish === "string") {
      turn.done = true
      for (const part of turn.parts) if (part.state === "input") part.state = "called"
    }
  }
}

const data = (part, turn) => turn.parts.push({ kind: "data", name: part.type.slice("data-".length), value: asText(part.data) })
const fail = (part, turn, transcript) =>
  Object.assign(transcript.call(turn, part), { failure: asText(part.errorText), state: "failed" })

/** What each part of an AI SDK message stream does to its turn. */
const PARTS = new Map(
  Object.entries({
    // A part of its own, even where an id comes again.
    "text-start": (part, turn) => turn.parts.push({ kind: "text", id: `text ${asText(part.id)}`, text: "" }),
    "text-delta": (part, turn, transcript) => transcript.say(turn, "text", part),
    "reasoning-start": (part, turn) => turn.parts.push({ kind: "reasoning", id: `reasoning ${asText(part.id)}`, text: "" }),
    "reasoning-delta": (part, turn, transcript) => transcript.say(turn, "reasoning", part),
    "tool-input-start": (part, turn, transcript) => transcript.call(turn, part),
    "tool-input-delta": (part, turn, transcript) => {
      const call = transcript.call(turn, part)
      call.input = (call.input ?? "") + asText(part.inputTextDelta)
    },
    "tool-input-available": (part, turn, transcript) => Object.assign(transcript.call(turn, part), { input: asText(part.input), state: "called" }),
    "tool-output-available": (part, turn, transcript) => Object.assign(transcript.call(turn, part), { output: asText(part.output), state: "done" }),
    "tool-input-error": fail,
    "tool-output-error": fail,
    "tool-approval-request": (part, turn, transcript) => Object.assign(transcript.call(turn, part), { state: "waits for approval" }),
    file: (part, turn) => turn.parts.push(attachment(part)),
    "source-url": (part, turn) => turn.parts.push(attachment(part)),
    "source-document": (part, turn) => turn.parts.push(attachment(part)),
    error: (part, turn) => turn.parts.push({ kind: "error", text: asText(part.errorText) }),
  }),
)

/** The values that a message holds: one of JSON, or those of the SSE events in it. */
function valuesOf(text) {
  const texts = text.startsWith("data:") ? text.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5)) : [text]
  return texts.map(parse).filter((value) => value !== undefined)
}

function parse(text) {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
