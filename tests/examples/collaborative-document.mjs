// Three clients of one document: concurrent edits, one that was away over a snapshot, one late.
import assert from "node:assert/strict"
import { StreamProvider, Y } from "../../examples/collaborative-document.mjs"

const url = process.argv[2]
let expectedLength = 40

async function open() {
  const doc = new Y.Doc()
  const provider = new StreamProvider(url, doc)
  await provider.caughtUp
  return { doc, provider, text: doc.getText("text") }
}

function agreed(...clients) {
  const same = () => clients.every(({ text }) => text.toString() === clients[0].text.toString())
  const complete = () => clients.every(({ text }) => text.length === expectedLength)
  return new Promise((resolve) => {
    const look = () => same() && complete() && resolve(clients[0].text.toString())
    for (const { doc } of clients) doc.on("update", look)
    look()
  })
}

const [alice, bob] = [await open(), await open()]
for (let n = 0; n < 20; n++) {
  alice.text.insert(0, "a")
  bob.text.insert(bob.text.length, "b")
}
await agreed(alice, bob)

// Bob leaves and keeps writing; meanwhile Alice writes and compacts.
bob.provider.destroy()
bob.text.insert(0, "offline ")
alice.text.insert(0, "online ")
await alice.provider.flushed()
await alice.provider.compact()

// His changes are sent when he is back.
const back = new StreamProvider(url, bob.doc)
await back.caughtUp
expectedLength = 40 + "offline ".length + "online ".length
const late = await open()
const text = await agreed(alice, { doc: bob.doc, text: bob.text }, late)
assert.match(text, /offline /)
assert.match(text, /online /)
assert.equal(text.replace(/offline |online /g, "").length, 40)
const trimmed = await fetch(`${url}?offset=-1`)
assert.equal(trimmed.status, 410)
for (const { provider } of [alice, late, { provider: back }]) provider.destroy()
console.log("agreed")
