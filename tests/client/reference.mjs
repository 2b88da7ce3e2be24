// The Node reference server on a free port, in memory. Prints its URL; ends when its input does.
import { createRequire } from "node:module"

const require = createRequire(new URL("../../examples/package.json", import.meta.url))
const { DurableStreamTestServer } = require("@durable-streams/server")
const server = new DurableStreamTestServer({ port: 0, host: "127.0.0.1", compression: false })
console.log(await server.start())
process.stdin.on("close", () => process.exit(0)).resume()
