// TanStack's own chat client, over the backend of examples/: one page is closed within an answer,
// the next one has all of it, and a second page sees the same.
import { once } from "node:events"
import { createRequire } from "node:module"
import assert from "node:assert/strict"
import { pathToFileURL } from "node:url"
import { chatBackend } from "../../examples/tanstack-ai.mjs"

const examples = createRequire(new URL("../../examples/package.json", import.meta.url))
const imported = async (...path) => import(pathToFileURL(path.join("/")).href)
const modules = examples.resolve("zod").replace(/node_modules.*/, "node_modules")
const { ChatClient } = await imported(modules, "@tanstack/ai-client/dist/esm/index.js")
const { durableStreamConnection } = await imported(
  modules,
  "@durable-streams/tanstack-ai-transport/dist/index.js",
)

const streams = `${process.argv[2]}/v1/stream/chats`
const WORDS = ["Streams", " remember", " what", " they", " said."]

// `proceed` lets the answer go beyond its second word.
let proceed
const held = new Promise((resolve) => (proceed = resolve))
async function* answer(messages) {
  assert.equal(messages.length, 1)
  yield { type: "RUN_STARTED", runId: "run-1" }
  yield { type: "TEXT_MESSAGE_START", messageId: "answer-1", role: "assistant" }
  for (const [number, delta] of WORDS.entries()) {
    if (number === 2) await held
    yield { type: "TEXT_MESSAGE_CONTENT", messageId: "answer-1", delta }
  }
  yield { type: "TEXT_MESSAGE_END", messageId: "answer-1" }
  yield { type: "RUN_FINISHED", runId: "run-1" }
}

const backend = chatBackend(streams, answer).listen(0, "127.0.0.1")
await once(backend, "listening")
const sendUrl = `http://127.0.0.1:${backend.address().port}/api/chat?id=tanstack`
assert.equal((await fetch(sendUrl, { method: "PUT" })).status, 204)
assert.equal((await fetch(`${sendUrl}/../x`, { method: "PUT" })).status, 400)

// A page: what its messages are, and a promise of them being as expected.
function open() {
  const page = { shown: [], check: () => {} }
  page.client = new ChatClient({
    id: "tanstack",
    connection: durableStreamConnection({ sendUrl, readUrl: `${streams}/tanstack` }),
    onMessagesChange(messages) {
      page.shown = messages.map(({ role, parts }) => [
        role,
        parts.map((part) => part.content ?? "").join(""),
      ])
      page.check()
    },
  })
  page.shows = (words) =>
    new Promise((resolve) => {
      page.check = () => page.shown.at(-1)?.[1] === words && resolve(page.shown)
      page.check()
    })
  page.client.subscribe()
  return page
}

const first = open()
const sending = first.client.sendMessage("What do streams do?")
await first.shows("Streams remember")
first.client.dispose()
await sending
const [second, third] = [open(), open()]
await second.shows("Streams remember")
proceed()
const expected = [
  ["user", "What do streams do?"],
  ["assistant", WORDS.join("")],
]
assert.deepEqual(await second.shows(WORDS.join("")), expected)
assert.deepEqual(await third.shows(WORDS.join("")), expected)
second.client.dispose()
third.client.dispose()
backend.close()
console.log("resumed")
process.exit(0) // the transport's live reads end with the process
