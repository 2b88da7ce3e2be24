// Follows one shape with Electric's own client and prints what it sees as JSON lines, until its
// standard input ends: {"rows": [...]} for the shape as a whole after each change, and
// {"message": ...} for each message.
import { Shape, ShapeStream } from "@electric-sql/client"

const { url, params, sse } = JSON.parse(process.argv[2])
const print = (line) =>
  process.stdout.write(
    JSON.stringify(line, (_, v) => (typeof v === "bigint" ? v.toString() : v)) + "\n",
  )

const stream = new ShapeStream({
  url: `${url}/v1/shape`,
  params,
  liveSse: sse,
  onError: (error) => print({ error: String(error) }),
})
stream.subscribe((messages) => messages.forEach((message) => print({ message })))
const shape = new Shape(stream)
shape.subscribe(({ rows }) => print({ rows, live: stream.isUpToDate }))
process.stdin.on("end", () => process.exit(0))
process.stdin.resume()
