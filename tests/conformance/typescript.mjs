// The official TypeScript client against a server: `node typescript.mjs URL`. Prints JSON.
// It stands here because the suite beside it brings the client.
import { DurableStream, IdempotentProducer } from "@durable-streams/client"

const base = process.argv[2]
const url = `${base}/v1/stream/typescript`

const stream = await DurableStream.create({ url, contentType: `application/json` })
await stream.append(JSON.stringify({ n: 0 }))

// Tail while a producer writes and closes.
const tailed = []
const response = await stream.stream({ live: `sse`, offset: `-1` })
const ended = new Promise((resolve) => {
  response.subscribeJson(async (batch) => {
    tailed.push(...batch.items)
    if (batch.streamClosed) resolve()
  })
  response.closed.then(resolve)
})

const producer = new IdempotentProducer(stream, `ts`, { lingerMs: 0 })
for (let n = 1; n < 50; n++) producer.append(JSON.stringify({ n }))
await producer.flush()
await producer.close(JSON.stringify({ n: 50 }))
await ended

const read = await (await DurableStream.connect({ url })).stream({ live: false })
const items = await read.json()
const head = await stream.head()
console.log(JSON.stringify({ tailed, items, closed: head.streamClosed }))
process.exit(0)
