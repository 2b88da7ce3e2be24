// A chat transport for the Vercel AI SDK whose answers survive reloads and dropped connections.
//
//     import { useChat } from "@ai-sdk/react"
//     const chat = useChat({ id, resume: true, transport: new StreamChatTransport(options) })
//
// `startAnswer` asks your backend to answer and returns the URL of the answer's stream; the backend
// appends the SDK's UI message chunks to it as JSON messages and closes it (`writeAnswer` does that
// in Node). `findAnswer` returns the URL of the chat's unfinished answer, or null. The transport
// reads the stream from its beginning, now or after a reload, and reconnects at its last offset.
import { follow } from "./follow.mjs"

export class StreamChatTransport {
  /** A resumed answer is replayed from its first chunk. */
  resumeStreamIsReplay = true

  constructor({ startAnswer, findAnswer }) {
    this._startAnswer = startAnswer
    this._findAnswer = findAnswer
  }

  async sendMessages({ chatId, messages, abortSignal }) {
    return readAnswer(await this._startAnswer({ chatId, messages }), abortSignal)
  }

  async reconnectToStream({ chatId, abortSignal }) {
    const url = await this._findAnswer({ chatId })
    return url ? readAnswer(url, abortSignal) : null
  }
}

/** The chunks in the stream at `url`, as the SDK reads them. */
export function readAnswer(url, signal) {
  const ended = new AbortController()
  signal?.addEventListener("abort", () => ended.abort(), { once: true })
  const batches = follow(url, { signal: ended.signal })
  return new ReadableStream({
    async pull(controller) {
      const { value, done } = await batches.next()
      if (done) return controller.close()
      for (const chunk of value.messages) controller.enqueue(chunk)
      if (value.closed) controller.close()
    },
    cancel: () => ended.abort(),
  })
}

/** Backend: copies chunks (`streamText(...).toUIMessageStream()`, say) into a new stream. */
export async function writeAnswer(url, chunks) {
  const headers = { "Content-Type": "application/json" }
  await accepted(await fetch(url, { method: "PUT", headers }))
  for await (const chunk of chunks) {
    // In an array, so that a chunk is one message whatever it is.
    await accepted(await fetch(url, { method: "POST", headers, body: JSON.stringify([chunk]) }))
  }
  await accepted(await fetch(url, { method: "POST", headers: { "Stream-Closed": "true" } }))
}

async function accepted(answer) {
  if (!answer.ok) throw new Error(`${answer.url} answers ${answer.status}: ${await answer.text()}`)
}
