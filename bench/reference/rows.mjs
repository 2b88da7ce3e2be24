// The three figures that the reference's own benchmark reports, measured with its own client:
// append to delivery by long-poll (ms), appends of 100 bytes and of 1 MiB (messages/s).
// Usage: node rows.mjs BASE_URL RTT_COUNT SMALL_COUNT LARGE_COUNT; prints one JSON line.
import { DurableStream } from "@durable-streams/client"

const [baseUrl, ...counts] = process.argv.slice(2)
const [rttCount, smallCount, largeCount] = counts.map(Number)
let made = 0

function makeStream() {
  const url = `${baseUrl}/v1/stream/rows-${process.pid}-${made++}`
  return DurableStream.create({ url, contentType: "application/octet-stream" })
}

// Resolves with the offset behind the first bytes that arrive after `offset`.
async function next(stream, offset) {
  const response = await stream.stream({ offset, live: "long-poll" })
  return new Promise((resolve) => {
    const stop = response.subscribeBytes((chunk) => {
      if (chunk.data.length === 0) return
      stop()
      response.cancel()
      resolve(chunk.offset)
    })
  })
}

async function roundTrip() {
  const stream = await makeStream()
  const message = new Uint8Array(100).fill(42)
  const first = next(stream, (await stream.head()).offset)
  await stream.append(message)
  const offset = await first
  const second = next(stream, offset)
  const began = performance.now()
  await stream.append(message)
  await second
  const took = performance.now() - began
  await stream.delete()
  return took
}

async function throughput(bytes, count, concurrency) {
  const stream = await makeStream()
  const message = new Uint8Array(bytes).fill(42)
  let sent = 0
  const began = performance.now()
  while (sent < count) {
    await Promise.all(Array.from({ length: concurrency }, () => stream.append(message)))
    sent += concurrency
  }
  const seconds = (performance.now() - began) / 1000
  await stream.delete()
  return sent / seconds
}

async function mean(times, measure) {
  await measure() // warm up
  let total = 0
  for (let n = 0; n < times; n++) total += await measure()
  return total / times
}

const rtt = await mean(rttCount, roundTrip)
const small = await mean(smallCount, () => throughput(100, 1000, 75))
const large = await mean(largeCount, () => throughput(1024 * 1024, 50, 15))
console.log(JSON.stringify({ rtt_ms: rtt, small_per_s: small, large_per_s: large }))
process.exit(0)
