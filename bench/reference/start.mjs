// The reference server in memory, on the port given as the only argument.
// Compression is off: Headrace leaves compression to a proxy, so both do the same work.
import { DurableStreamTestServer } from "@durable-streams/server"

const port = Number(process.argv[2])
const server = new DurableStreamTestServer({ port, host: "127.0.0.1", compression: false })
await server.start()
console.log("READY")
process.on("SIGTERM", () => process.exit(0))
