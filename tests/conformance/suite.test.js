// The package's own command finds no test files, so this file calls the suite.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

const baseUrl = process.env.CONFORMANCE_BASE_URL
if (!baseUrl) {
  throw new Error("CONFORMANCE_BASE_URL is not set: run `make conformance`")
}

const subscriptions = process.env.CONFORMANCE_SUBSCRIPTIONS !== "off"
// What the suite is told is only its own patience (a second more than this), not the server's:
// a busy machine may take longer over a long-poll than the server waits.
runConformanceTests({ baseUrl, longPollTimeoutMs: 30_000, subscriptions })
