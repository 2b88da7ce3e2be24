// A list of any length of which only what is in sight exists as elements.
//
// Every row has the same height but those that were opened, and of these there are few.

const OVERSCAN = 8

export class Rows {
  #opened = new Map() // index -> height beyond the common one
  #elements = new Map() // index -> element
  #scheduled = false
  #count = 0

  /** `render(index)` makes one row's element. `scroller` scrolls, `spacer` inside it is as tall as all rows. */
  constructor(scroller, spacer, rowHeight, render) {
    this.scroller = scroller
    this.spacer = spacer
    this.rowHeight = rowHeight
    this.render = render
    scroller.addEventListener("scroll", () => this.schedule(), { passive: true })
    new ResizeObserver(() => this.schedule()).observe(scroller)
    this.onDraw = null
  }

  get count() {
    return this.#count
  }

  set count(n) {
    this.#count = n
    this.spacer.style.height = `${this.top(n)}px`
    this.schedule()
  }

  /** Forget every element; rows are made anew. */
  reset() {
    for (const element of this.#elements.values()) element.remove()
    this.#elements.clear()
    this.#opened.clear()
    this.count = this.#count
  }

  /** Make the rows in sight anew, where their content has changed but not their place. */
  refresh() {
    for (const element of this.#elements.values()) element.remove()
    this.#elements.clear()
    this.schedule()
  }

  element(index) {
    return this.#elements.get(index)
  }

  get inSight() {
    const first = this.indexAt(this.scroller.scrollTop)
    return [first, Math.min(this.#count, this.indexAt(this.scroller.scrollTop + this.scroller.clientHeight) + 1)]
  }

  setHeight(index, height) {
    const extra = height - this.rowHeight
    if (extra === (this.#opened.get(index) ?? 0)) return
    if (extra) this.#opened.set(index, extra)
    else this.#opened.delete(index)
    this.count = this.#count
    for (const [at, element] of this.#elements) this.#place(at, element)
  }

  top(index) {
    let extra = 0
    for (const [at, height] of this.#opened) if (at < index) extra += height
    return index * this.rowHeight + extra
  }

  indexAt(y) {
    let low = 0
    let high = Math.max(0, this.#count - 1)
    while (low < high) {
      const middle = (low + high + 1) >> 1
      if (this.top(middle) <= y) low = middle
      else high = middle - 1
    }
    return low
  }

  get atEnd() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller
    return scrollTop + clientHeight >= scrollHeight - this.rowHeight
  }

  scrollToEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight
    this.schedule()
  }

  /** Bring a row into sight, if it is not; `where` "start" puts it at the top. */
  scrollTo(index, where = "nearest") {
    const top = this.top(index)
    const view = this.scroller
    if (where === "start" || top < view.scrollTop) view.scrollTop = top
    else if (top + this.rowHeight > view.scrollTop + view.clientHeight) {
      view.scrollTop = top + this.rowHeight - view.clientHeight
    }
    this.draw()
  }

  schedule() {
    if (this.#scheduled) return
    this.#scheduled = true
    requestAnimationFrame(() => {
      this.#scheduled = false
      this.draw()
    })
  }

  draw() {
    const [seenFirst, seenEnd] = this.inSight
    const first = Math.max(0, seenFirst - OVERSCAN)
    const end = Math.min(this.#count, seenEnd + OVERSCAN)
    const focused = document.activeElement
    for (const [at, element] of this.#elements) {
      // What has the keyboard stays, wherever it is: removing it would lose the user's place.
      if ((at < first || at >= end) && (at >= this.#count || !element.contains(focused))) {
        element.remove()
        this.#elements.delete(at)
      }
    }
    for (let at = first; at < end; at += 1) {
      if (this.#elements.has(at)) continue
      const element = this.render(at)
      this.#elements.set(at, element)
      this.#place(at, element)
      this.spacer.append(element)
    }
    this.onDraw?.(seenFirst, seenEnd)
  }

  #place(index, element) {
    element.style.transform = `translateY(${this.top(index)}px)`
  }
}
