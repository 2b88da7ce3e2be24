// Reading a JSON stream live with plain fetch, in a browser or in Node: catch up, then long-poll.
//
//     for await (const { messages, offset, closed } of follow(url)) ...
//
// It reconnects at its last offset until the stream is closed or `signal` aborts. Every answer
// names the next offset, so nothing is missed and nothing comes twice, whatever breaks in between.

const DELAY_MS = 250
const DELAY_MS_MAX = 10_000

export async function* follow(url, { offset = "-1", signal } = {}) {
  let live = false
  let cursor = null
  let delayMs = DELAY_MS
  while (true) {
    const asked = new URL(url)
    asked.searchParams.set("offset", offset)
    if (live) asked.searchParams.set("live", "long-poll")
    if (live && cursor) asked.searchParams.set("cursor", cursor)
    let answer, messages
    try {
      answer = await fetch(asked, { signal })
      messages = answer.status === 200 ? await answer.json() : []
    } catch (error) {
      if (signal?.aborted) return
      answer = null // no connection, or it broke within the body: the offset has not moved
    }
    if (!answer || answer.status === 429 || answer.status >= 500) {
      await pause(retryAfterMs(answer) ?? delayMs, signal)
      if (signal?.aborted) return
      delayMs = Math.min(delayMs * 2, DELAY_MS_MAX)
      continue
    }
    if (!answer.ok) {
      const error = new Error(`${url} answers ${answer.status}: ${await answer.text()}`)
      throw Object.assign(error, { status: answer.status })
    }
    delayMs = DELAY_MS
    offset = answer.headers.get("stream-next-offset")
    cursor = answer.headers.get("stream-cursor")
    live = answer.headers.get("stream-up-to-date") === "true"
    const closed = answer.headers.get("stream-closed") === "true"
    yield { messages, offset, closed: closed && live, upToDate: live }
    if (closed && live) return
  }
}

function retryAfterMs(answer) {
  const secs = Number(answer?.headers.get("retry-after"))
  return secs > 0 ? secs * 1000 : null
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms)
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true })
  })
}
