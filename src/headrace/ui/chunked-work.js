// Long work in short pieces, so that the page stays quick: no task of it lasts longer than a slice.

const SLICE_MS = 8 // half of a frame of the screen
const LOOKS_EVERY = 16 // items between two looks at the clock

/** Lets everything else that is due run first. */
export const rest = () => globalThis.scheduler?.yield?.() ?? new Promise((resolve) => setTimeout(resolve, 0))

/** Calls `work` with each of `items`, in order; it ends early when `work` returns false. */
export async function inSlices(items, work) {
  let until = performance.now() + SLICE_MS
  let done = 0
  for (const item of items) {
    if (work(item) === false) return
    done += 1
    if (done % LOOKS_EVERY || performance.now() < until) continue
    await rest()
    until = performance.now() + SLICE_MS
  }
}
