// A lock pins names, versions and hashes. Addresses (npm's `funding` links) are no part of that.
import { readFileSync, writeFileSync } from "node:fs"

const lock = JSON.parse(readFileSync("package-lock.json", "utf8"))
for (const entry of Object.values(lock.packages)) {
  delete entry.funding
  delete entry.resolved
}
writeFileSync("package-lock.json", JSON.stringify(lock, null, 2) + "\n")
