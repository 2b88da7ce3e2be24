// What one chat message holds, whatever it was written for: text, reasoning, tool calls and their
// results, files, sources. Nothing is trusted to have the type that it should have.

const ROLE_CHARS = 40

export const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value)

/** A value as text: strings as they are, anything else as JSON. */
export function asText(value) {
  if (typeof value === "string") return value
  return value === undefined || value === null ? "" : JSON.stringify(value)
}

export const roleOf = (value) => (typeof value === "string" && value !== "" ? value.slice(0, ROLE_CHARS) : "unknown")

/** Whether a value is a whole message of a conversation: a role, and something said. */
export function isMessage(value) {
  if (!isObject(value) || typeof value.role !== "string" || value.role === "") return false
  return (
    typeof value.content === "string" ||
    typeof value.text === "string" ||
    Array.isArray(value.content) ||
    Array.isArray(value.parts) ||
    Array.isArray(value.tool_calls)
  )
}

/** A call of a tool; `input` and `output` are text, null while they are not known. */
export function toolCall(id, name, input = null) {
  return { kind: "tool", id: asText(id), name: asText(name) || "tool", input, output: null, failure: null, state: input === null ? "input" : "called" }
}

/** The parts of a whole message. A `result` belongs to a call that may be in an earlier message. */
export function partsOf(message) {
  if (message.role === "tool" && message.tool_call_id !== undefined) {
    return [{ kind: "result", id: asText(message.tool_call_id), output: plain(message.content), failure: null }]
  }
  const body = message.parts ?? message.content ?? message.text ?? []
  const parts = (Array.isArray(body) ? body : [body]).map(partOf).filter((part) => part !== null)
  for (const call of Array.isArray(message.tool_calls) ? message.tool_calls : []) {
    if (isObject(call)) parts.push(toolCall(call.id, call.function?.name, asText(call.function?.arguments)))
  }
  return parts
}

/** Content as text, where it is a string or a list of text parts. */
function plain(content) {
  if (!Array.isArray(content)) return asText(content)
  return content.map((part) => (typeof part?.text === "string" ? part.text : asText(part))).join("\n")
}

function partOf(part) {
  if (typeof part === "string") return { kind: "text", text: part }
  if (!isObject(part)) return null
  const type = asText(part.type)
  if (["text", "input_text", "output_text"].includes(type)) return { kind: "text", text: asText(part.text) }
  if (type === "reasoning" || type === "thinking") return { kind: "reasoning", text: asText(part.text ?? part.thinking) }
  if (type === "tool_use" || type === "tool-call") {
    return toolCall(part.id ?? part.toolCallId, part.name ?? part.toolName, asText(part.input ?? part.args))
  }
  if (type === "tool_result" || type === "tool-result") {
    const output = plain(part.content ?? part.output ?? part.result)
    return { kind: "result", id: asText(part.tool_use_id ?? part.toolCallId), output, failure: part.is_error === true ? output : null }
  }
  if (type === "dynamic-tool" || type.startsWith("tool-")) return uiTool(part, type)
  if (["image_url", "image", "file", "source-url", "source-document"].includes(type)) return attachment(part)
  return type === "step-start" ? null : { kind: "data", name: type || "data", value: asText(part.data ?? part) }
}

/** A tool's part in a UIMessage of the AI SDK: the whole call, as far as it has come. */
function uiTool(part, type) {
  const call = toolCall(part.toolCallId, part.toolName ?? type.slice("tool-".length), part.input === undefined ? null : asText(part.input))
  if (part.errorText !== undefined) Object.assign(call, { failure: asText(part.errorText), state: "failed" })
  else if (part.output !== undefined) Object.assign(call, { output: asText(part.output), state: "done" })
  return call
}

/** A file or a source: named, and never fetched or linked to. */
export function attachment(part) {
  const url = asText(part.url ?? part.image_url?.url ?? part.source?.url ?? part.image)
  const name = asText(part.title ?? part.filename ?? part.name)
  return { kind: "file", name, mediaType: asText(part.mediaType ?? part.mimeType), url: url.slice(0, 300) }
}
