// Filters by field: `$.order.total > 100 && $.role == "user"`. A filter is a small expression over
// one JSON message; a wrong one is refused with the place where it goes wrong.
//
//   either     = all { ("||" | "or") all }
//   all        = one { ("&&" | "and") one }
//   one        = ("!" | "not") one | "(" either ")" | path [ operator value ]
//   operator   = "==" | "!=" | ">" | ">=" | "<" | "<=" | "contains"
//   path       = "$" { "." name | "[" number "]" | "[" string "]" | "[*]" }
//   value      = string | number | true | false | null | path
//
// A path alone asks whether the field is there and neither null nor false. `[*]` is any element.

const TOKEN = /\s*(?:(\|\||&&|==|!=|>=|<=|[><=!()[\]*.$])|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|([\p{L}_][\p{L}\p{N}_-]*))/uy
const OPERATORS = new Set(["==", "=", "!=", ">", ">=", "<", "<=", "contains"])
const WORDS = new Map([["true", true], ["false", false], ["null", null]])
const DEPTH_MAX = 50

/** Whether a text that is searched for is meant as a filter. */
export const isFilter = (text) => /^[\s(!]*(not\s+)?\$\s*([.[=<>!]|contains\b)/.test(text)

/** A function of a message's text: whether the message is wanted. Throws a sentence otherwise. */
export function compileFilter(source) {
  const wanted = new Parser(tokens(source), source).parse()
  return (text) => {
    let message
    try {
      message = JSON.parse(text)
    } catch {
      return false
    }
    return wanted(message)
  }
}

/** { kind, text, value, at } for each token; kinds are those of the groups above. */
function tokens(source) {
  const found = []
  TOKEN.lastIndex = 0
  while (source.slice(TOKEN.lastIndex).trim() !== "") {
    const from = TOKEN.lastIndex
    const match = TOKEN.exec(source)
    if (!match) {
      const at = from + source.slice(from).search(/\S/)
      throw new Error(/["']/.test(source[at]) ? `The text that begins at character ${at + 1} has no closing quote.` : `“${source[at]}” at character ${at + 1} is not understood.`)
    }
    const [, sign, quoted, number, word] = match
    const text = sign ?? quoted ?? number ?? word
    const at = TOKEN.lastIndex - text.length
    if (sign) found.push({ kind: "sign", text, at })
    else if (quoted) found.push({ kind: "value", text, value: unquoted(quoted, at), at })
    else if (number) found.push({ kind: "value", text, value: Number(number), at })
    else found.push({ kind: "word", text, at })
  }
  return found
}

function unquoted(text, at) {
  const inner = text.slice(1, -1)
  try {
    return JSON.parse(text[0] === '"' ? text : `"${inner.replaceAll("\\'", "'").replaceAll('"', '\\"')}"`)
  } catch {
    throw new Error(`The text at character ${at + 1} has an escape that JSON does not know.`)
  }
}

class Parser {
  #at = 0
  #depth = 0

  constructor(found, source) {
    this.tokens = found
    this.source = source
  }

  parse() {
    const wanted = this.#either()
    if (this.#next) throw this.#expected("“and”, “or” or the end")
    return wanted
  }

  get #next() {
    return this.tokens[this.#at]
  }

  #take(...texts) {
    const next = this.#next
    if (!next || next.kind === "value" || !texts.includes(next.text)) return null
    this.#at += 1
    return next.text
  }

  #expected(what) {
    const next = this.#next
    const before = this.tokens[this.#at - 1]
    const place = next ? `but found “${next.text}” at character ${next.at + 1}` : before ? `after “${before.text}” at the end` : "and found nothing"
    return new Error(`Expected ${what}, ${place}.`)
  }

  #either() {
    const parts = [this.#all()]
    while (this.#take("||", "or")) parts.push(this.#all())
    return parts.length === 1 ? parts[0] : (message) => parts.some((part) => part(message))
  }

  #all() {
    const parts = [this.#one()]
    while (this.#take("&&", "and")) parts.push(this.#one())
    return parts.length === 1 ? parts[0] : (message) => parts.every((part) => part(message))
  }

  #one() {
    this.#depth += 1
    if (this.#depth > DEPTH_MAX) throw new Error(`A filter nests at most ${DEPTH_MAX} deep.`)
    try {
      if (this.#take("!", "not")) {
        const part = this.#one()
        return (message) => !part(message)
      }
      if (!this.#take("(")) return this.#comparison()
      const inner = this.#either()
      if (!this.#take(")")) throw this.#expected("“)”")
      return inner
    } finally {
      this.#depth -= 1
    }
  }

  #comparison() {
    if (this.#next?.text !== "$") throw this.#expected("a field such as $.name")
    const left = this.#path()
    const operator = this.#take(...OPERATORS)
    if (!operator) {
      if (this.#next && !["&&", "and", "||", "or", ")"].includes(this.#next.text)) throw this.#expected("an operator (== != > >= < <= contains)")
      return (message) => left(message).some((value) => value !== undefined && value !== null && value !== false)
    }
    const right = this.#value(operator)
    const test = COMPARE.get(operator)
    return (message) => left(message).some((one) => right(message).some((other) => test(one, other)))
  }

  /** The values that a path leads to: none, one, or as many as `[*]` finds. */
  #path() {
    this.#at += 1 // "$"
    const steps = []
    for (;;) {
      if (this.#take(".")) steps.push(this.#name())
      else if (this.#take("[")) steps.push(this.#index())
      else break
    }
    return (message) => steps.reduce((values, step) => values.flatMap((value) => reach(value, step)), [message])
  }

  #name() {
    const next = this.#next
    if (next?.kind !== "word") throw this.#expected("the name of a field (others as [\"name\"])")
    this.#at += 1
    return next.text
  }

  #index() {
    const any = this.#take("*")
    const next = this.#next
    if (!any) {
      if (next?.kind !== "value") throw this.#expected("a number, a name in quotes or *")
      this.#at += 1
    }
    if (!this.#take("]")) throw this.#expected("“]”")
    return any ? ANY : next.value
  }

  #value(operator) {
    const next = this.#next
    if (next?.text === "$" && next.kind === "sign") return this.#path()
    const isWord = next?.kind === "word" && WORDS.has(next.text)
    if (next?.kind === "word" && !isWord) throw new Error(`A text needs quotes: ${operator} "${next.text}" (character ${next.at + 1}).`)
    if (next?.kind !== "value" && !isWord) throw this.#expected("a value (a number, a text in quotes, true, false, null)")
    this.#at += 1
    const value = isWord ? WORDS.get(next.text) : next.value
    return () => [value]
  }
}

const ANY = Symbol("any element")

function reach(value, step) {
  if (value === null || typeof value !== "object") return []
  if (step === ANY) return Object.values(value)
  const key = Array.isArray(value) && step < 0 ? value.length + step : step
  return Object.hasOwn(value, key) ? [value[key]] : []
}

const isSame = (a, b) => a === b || (typeof a === "object" && typeof b === "object" && JSON.stringify(a) === JSON.stringify(b))
const isOrdered = (a, b) => typeof a === typeof b && (typeof a === "number" || typeof a === "string")

function contains(whole, part) {
  if (Array.isArray(whole)) return whole.some((one) => isSame(one, part))
  return typeof whole === "string" && typeof part === "string" && whole.toLowerCase().includes(part.toLowerCase())
}

const COMPARE = new Map([
  ["==", isSame],
  ["=", isSame],
  ["!=", (a, b) => !isSame(a, b)],
  [">", (a, b) => isOrdered(a, b) && a > b],
  [">=", (a, b) => isOrdered(a, b) && a >= b],
  ["<", (a, b) => isOrdered(a, b) && a < b],
  ["<=", (a, b) => isOrdered(a, b) && a <= b],
  ["contains", contains],
])
