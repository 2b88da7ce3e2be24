// The SDK's own chat, over the transport of examples/: an answer, and one that is resumed.
import { createRequire } from "node:module"
import assert from "node:assert/strict"
import { readAnswer, StreamChatTransport, writeAnswer } from "../../examples/ai-sdk-transport.mjs"

const { AbstractChat, createUIMessageStream, readUIMessageStream } = createRequire(
  new URL("../../examples/package.json", import.meta.url),
)("ai")
const server = process.argv[2]
const WORDS = ["Streams", " remember", " what", " they", " said."]

// The state of a page; @ai-sdk/react and the other bindings have their own.
class Chat extends AbstractChat {
  constructor(options) {
    const state = {
      status: "ready",
      messages: options.messages ?? [],
      error: undefined,
      pushMessage: (message) => state.messages.push(message),
      popMessage: () => state.messages.pop(),
      replaceMessage: (index, message) => (state.messages[index] = message),
      snapshot: (value) => structuredClone(value),
    }
    super({ ...options, state })
  }
}

// A backend: writes an answer word by word; `proceed` lets it go beyond the second.
let proceed
const unfinished = new Map()
const held = new Promise((resolve) => (proceed = resolve))
async function* chunks() {
  yield { type: "start", messageId: "answer-1" }
  yield { type: "text-start", id: "text" }
  for (const [number, delta] of WORDS.entries()) {
    if (number === 2) await held
    yield { type: "text-delta", id: "text", delta }
  }
  yield { type: "text-end", id: "text" }
  yield { type: "finish" }
}
let written
async function startAnswer({ chatId }) {
  const url = `${server}/v1/stream/chats/${chatId}/answer-1`
  unfinished.set(chatId, url)
  const put = await fetch(url, { method: "PUT", headers: { "Content-Type": "application/json" } })
  assert.equal(put.status, 201)
  written = writeAnswer(url, chunks()).finally(() => unfinished.delete(chatId))
  return url
}
const findAnswer = ({ chatId }) => Promise.resolve(unfinished.get(chatId) ?? null)
const transport = () => new StreamChatTransport({ startAnswer, findAnswer })
const texts = (chat) =>
  chat.messages.map(({ role, parts }) => [role, parts.map((part) => part.text ?? "").join("")])

const first = new Chat({ id: "c1", transport: transport() })
const sending = first.sendMessage({ text: "What do streams do?" })
while ((texts(first)[1]?.[1] ?? "") !== "Streams remember") await new Promise(setImmediate)
// The page is closed in the middle of the answer. Another one opens with the messages it knows.
await first.stop()
await sending
const second = new Chat({ id: "c1", transport: transport(), messages: [first.messages[0]] })
const resumed = second.resumeStream()
proceed()
await resumed
await written
assert.deepEqual(texts(second), [
  ["user", "What do streams do?"],
  ["assistant", WORDS.join("")],
])
assert.equal(second.status, "ready")

// A finished answer can be read again, and there is nothing to resume.
const url = `${server}/v1/stream/chats/c1/answer-1`
let last
for await (const message of readUIMessageStream({ stream: readAnswer(url) })) last = message
assert.equal(last.parts.at(-1).text, WORDS.join(""))
assert.equal(await transport().reconnectToStream({ chatId: "c1" }), null)

// The SDK's own stream of chunks, as streamText returns it, can be written as it is.
const made = createUIMessageStream({
  execute: ({ writer }) => {
    writer.write({ type: "text-start", id: "t" })
    writer.write({ type: "text-delta", id: "t", delta: "ok" })
    writer.write({ type: "text-end", id: "t" })
  },
})
await writeAnswer(`${server}/v1/stream/chats/c2/answer`, made)
let again
const reread = readAnswer(`${server}/v1/stream/chats/c2/answer`)
for await (const message of readUIMessageStream({ stream: reread })) again = message
assert.equal(again.parts.at(-1).text, "ok")
console.log("resumed")
