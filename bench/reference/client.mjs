// The official TypeScript client: `node client.mjs produce|read URL COUNT PAYLOAD`.
// Prints the seconds from the first message to the last answer, and the CPU seconds they took,
// after a warm-up of a tenth in this same process.
import { DurableStream, IdempotentProducer } from "@durable-streams/client"

const [verb, url, count, payload] = process.argv.slice(2)

async function produce(url, messages) {
  const stream = await DurableStream.create({ url, contentType: "application/json" })
  return timed(async () => {
    const producer = new IdempotentProducer(stream, "bench", { lingerMs: 0 })
    for (let n = 0; n < messages; n++) producer.append(JSON.stringify({ n, payload }))
    await producer.flush()
  })
}

async function read(url, messages) {
  const stream = await DurableStream.connect({ url })
  return timed(async () => {
    let found = 0
    // Without `live` this client stops after one answer, even if that is not up to date.
    for (let offset = "-1", response; !response?.upToDate; offset = response.offset) {
      response = await stream.stream({ live: false, offset })
      found += (await response.json()).length
    }
    if (found !== messages) throw new Error(`${found} messages of ${messages}`)
  })
}

async function timed(work) {
  const cpu = process.cpuUsage()
  const began = performance.now()
  await work()
  const seconds = (performance.now() - began) / 1000
  const { user, system } = process.cpuUsage(cpu)
  return { seconds, cpu_seconds: (user + system) / 1e6 }
}

const few = Math.ceil(Number(count) / 10)
await produce(`${url}-warm-up`, few)
if (verb === "read") await read(`${url}-warm-up`, few)
console.log(JSON.stringify(await (verb === "produce" ? produce : read)(url, Number(count))))
process.exit(0)
