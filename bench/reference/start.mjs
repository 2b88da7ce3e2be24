// The reference server on the port given as the only argument: in memory, or in files where
// BENCH_DATA_DIR says so.
// Compression is off: Headrace leaves compression to a proxy, so both do the same work.
import { DurableStreamTestServer } from "@durable-streams/server"

const port = Number(process.argv[2])
const dataDir = process.env.BENCH_DATA_DIR
const server = new DurableStreamTestServer({ port, host: "127.0.0.1", compression: false, dataDir })
await server.start()
console.log("READY")
process.on("SIGTERM", () => process.exit(0))
