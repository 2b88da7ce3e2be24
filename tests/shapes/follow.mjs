// Follows one shape with Electric's own client and prints what it sees as JSON lines, until its
// standard input ends: {"rows": [...]} for the shape as a whole after each change, and
// {"message": ...} for each message; if it is asked to count, {"count": ...} of the rows alone.
// Each line of its input is a subset to ask for.
import { createInterface } from "node:readline"
import { Shape, ShapeStream } from "@electric-sql/client"

const { url, params, sse, counted } = JSON.parse(process.argv[2])
const { log, offset, ...rest } = params
const print = (line) =>
  process.stdout.write(
    JSON.stringify(line, (_, v) => (typeof v === "bigint" ? v.toString() : v)) + "\n",
  )

const stream = new ShapeStream({
  url: `${url}/v1/shape`,
  params: rest,
  ...(log && { log }),
  ...(offset && { offset }),
  liveSse: sse,
  onError: (error) => print({ error: String(error) }),
})
const shape = new Shape(stream)
if (counted) shape.subscribe(({ rows }) => print({ count: rows.length }))
else {
  stream.subscribe((messages) => messages.forEach((message) => print({ message })))
  shape.subscribe(({ rows }) => print({ rows, live: stream.isUpToDate }))
}
createInterface({ input: process.stdin })
  .on("line", (line) =>
    stream.requestSnapshot(JSON.parse(line)).catch((error) => print({ error: String(error) })),
  )
  .on("close", () => process.exit(0))
