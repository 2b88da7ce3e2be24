// A backend for TanStack AI whose chats survive reloads and are shared by every page that is open.
//
//     node tanstack-ai.mjs http://localhost:4437/v1/stream/chats
//     curl -X PUT 'http://localhost:8001/api/chat?id=c1'
//     curl 'http://localhost:8001/api/chat?id=c1' \
//          -d '{"messages": [{"role": "user", "parts": [{"type": "text", "content": "why?"}]}]}'
//
// A chat is one stream of AG-UI events. The backend appends the question and the events of the
// answer; pages read the stream itself, with upstream's transport:
//
//     import { useChat } from "@tanstack/ai-react"
//     const connection = durableStreamConnection({ sendUrl: "/api/chat?id=c1", readUrl: streamUrl })
//     const { messages, sendMessage } = useChat({ id: "c1", connection, live: true })
import { createServer } from "node:http"
import { pathToFileURL } from "node:url"
import {
  ensureDurableChatSessionStream,
  toDurableChatSessionResponse,
} from "@durable-streams/tanstack-ai-transport"

/** `answer(messages)` yields AG-UI events, as `chat({ adapter, messages })` of @tanstack/ai does. */
export function chatBackend(streams, answer) {
  async function handle(request) {
    const id = new URL(request.url, "http://backend").searchParams.get("id") ?? ""
    if (!/^[\w-]{1,64}$/.test(id)) return 400
    const stream = { writeUrl: `${streams}/${id}` }
    if (request.method === "PUT") {
      await ensureDurableChatSessionStream(stream) // before a page reads it
      return 204
    }
    let body = ""
    for await (const part of request) body += part
    const { messages } = JSON.parse(body)
    const newMessages = messages.slice(-1)
    const written = { stream, newMessages, responseStream: answer(messages) }
    return (await toDurableChatSessionResponse(written)).status
  }
  return createServer(async (request, response) => {
    const status = await handle(request).catch((error) => (console.error(error), 502))
    response.writeHead(status).end()
  })
}

/** A model that repeats what it is asked. */
async function* echo(messages) {
  const text = messages.at(-1).parts.map((part) => part.content ?? "").join("")
  const [messageId, runId] = [crypto.randomUUID(), crypto.randomUUID()]
  yield { type: "RUN_STARTED", runId }
  yield { type: "TEXT_MESSAGE_START", messageId, role: "assistant" }
  for (const word of text.split(/(?= )/)) {
    yield { type: "TEXT_MESSAGE_CONTENT", messageId, delta: word }
  }
  yield { type: "TEXT_MESSAGE_END", messageId }
  yield { type: "RUN_FINISHED", runId }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  chatBackend(process.argv[2], echo).listen(8001, "127.0.0.1")
}
