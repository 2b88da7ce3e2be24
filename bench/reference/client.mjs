// The official TypeScript client: `node client.mjs produce|read URL COUNT PAYLOAD`.
// Prints the seconds from the first message to the last answer.
import { DurableStream, IdempotentProducer } from "@durable-streams/client"

const [verb, url, count, payload] = process.argv.slice(2)
const messages = Number(count)

async function produce() {
  const stream = await DurableStream.create({ url, contentType: "application/json" })
  const began = performance.now()
  const producer = new IdempotentProducer(stream, "bench", { lingerMs: 0 })
  for (let n = 0; n < messages; n++) producer.append(JSON.stringify({ n, payload }))
  await producer.flush()
  return performance.now() - began
}

async function read() {
  const stream = await DurableStream.connect({ url })
  const began = performance.now()
  let found = 0
  // Without `live` this client stops after one answer, even if that is not up to date.
  for (let offset = "-1", response; !response?.upToDate; offset = response.offset) {
    response = await stream.stream({ live: false, offset })
    for await (const _ of response.jsonStream()) found++
  }
  if (found !== messages) throw new Error(`${found} messages of ${messages}`)
  return performance.now() - began
}

if (verb === "read" && url.endsWith("/warm-up")) await produce()
const ms = await (verb === "produce" ? produce() : read())
console.log(JSON.stringify({ seconds: ms / 1000 }))
process.exit(0)
