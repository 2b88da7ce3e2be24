// Elements from values. Text only ever becomes text: nothing here, or anywhere in this page,
// turns a string into markup. The page's policy refuses it too.

const SVG = "http://www.w3.org/2000/svg"

/** h("button", { class: "quiet", on: { click } }, "Pause") */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children)
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children)
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue
    if (name === "on") {
      for (const [type, listener] of Object.entries(value)) element.addEventListener(type, listener)
    } else if (name === "data") {
      Object.assign(element.dataset, value)
    } else if (name === "value") {
      element.value = value
    } else {
      element.setAttribute(name, value === true ? "" : String(value))
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined))
  return element
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined))
  return element
}

const ICONS = {
  pause: "M6 4h3v12H6zM11 4h3v12h-3z",
  play: "M6 4l10 6-10 6z",
  plus: "M9 4h2v5h5v2h-5v5H9v-5H4V9h5z",
  start: "M5 4h2v12H5zM16 4v12l-8-6z",
  end: "M13 4h2v12h-2zM4 4l8 6-8 6z",
  search: "M9 3a6 6 0 014.7 9.7l3.6 3.6-1.4 1.4-3.6-3.6A6 6 0 119 3zm0 2a4 4 0 100 8 4 4 0 000-8z",
  copy: "M7 3h9v11h-2V5H7zM4 6h8v11H4zm2 2v7h4V8z",
  close: "M5.4 4L10 8.6 14.6 4 16 5.4 11.4 10l4.6 4.6-1.4 1.4L10 11.4 5.4 16 4 14.6 8.6 10 4 5.4z",
  fork: "M6 3a2 2 0 011 3.7V8h6V6.7a2 2 0 112 0V10H11v3.3a2 2 0 11-2 0V10H5V6.7A2 2 0 016 3z",
  lock: "M6 9V7a4 4 0 018 0v2h1v8H5V9zm2 0h4V7a2 2 0 00-4 0z",
  trash: "M7 3h6l1 2h3v2H3V5h3zM4.5 8h11L14.6 17H5.4z",
  chevron: "M7 4l6 6-6 6-1.4-1.4L10.2 10 5.6 5.4z",
  info: "M9 8h2v7H9zM9 5h2v2H9zM10 2a8 8 0 110 16 8 8 0 010-16zm0 2a6 6 0 100 12 6 6 0 000-12z",
  back: "M12.4 4L14 5.4 9.4 10l4.6 4.6L12.4 16 6.4 10z",
  terminal: "M3 4h14v12H3zm2 2v8h10V6zm1 1.5L9 10l-3 2.5zM10 12h4v1h-4z",
  theme: "M10 3a7 7 0 100 14zM10 1.5a8.5 8.5 0 110 17 8.5 8.5 0 010-17zm0 2v13a6.5 6.5 0 000-13z",
  key: "M13 3a4 4 0 11-3.7 5.5L4 14v3h3v-2h2v-2h1.5l.6-.6A4 4 0 0113 3zm1 2.5a1.2 1.2 0 100 2.4 1.2 1.2 0 000-2.4z",
  chart: "M3 3h2v12h12v2H3zM7 10h2v4H7zM10.5 6h2v8h-2zM14 8h2v6h-2z",
  bucket: "M10 1.6c-3.6 0-6.5 2.6-6.9 6H2v2h1.2l1.5 7.5c.2.8.8 1.3 1.6 1.3h7.4c.8 0 1.4-.5 1.6-1.3L16.8 9.6H18v-2h-1.1c-.4-3.4-3.3-6-6.9-6zm0 1.8c2.6 0 4.7 1.8 5.1 4.2H4.9c.4-2.4 2.5-4.2 5.1-4.2zM5.2 9.6h9.6l-1.3 6.9h-7z",
  more: "M4 8.2a1.8 1.8 0 110 3.6 1.8 1.8 0 010-3.6zm6 0a1.8 1.8 0 110 3.6 1.8 1.8 0 010-3.6zm6 0a1.8 1.8 0 110 3.6 1.8 1.8 0 010-3.6z",
  tool: "M12.5 2.5a5 5 0 00-4.7 6.6L2.5 14.4v3.1h3.1l5.3-5.3a5 5 0 006.3-6.2l-3 3-2.3-.7-.7-2.3 3-3a5 5 0 00-1.7-.5z",
  camera: "M7 4h6l1.5 2H18v10H2V6h3.5zM10 7.5a3.5 3.5 0 100 7 3.5 3.5 0 000-7z",
}

export function icon(name) {
  return svg(
    "svg",
    { viewBox: "0 0 20 20", class: "icon", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: ICONS[name] }),
  )
}

/** A button with an icon; `label` is its name for everyone who does not see the icon. */
export function iconButton(name, label, onClick, props = {}) {
  return h(
    "button",
    { type: "button", class: "icon-button", title: label, "aria-label": label, on: { click: onClick }, ...props },
    icon(name),
  )
}

const announcements = () => document.getElementById("toasts")

/** Say something briefly, to eyes and to screen readers. */
export function toast(text, kind = "info") {
  const note = h("div", { class: `toast ${kind}` }, text)
  announcements().append(note)
  setTimeout(() => note.remove(), kind === "error" ? 8000 : 3000)
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text)
  } catch {
    // Plain http has no clipboard interface; the old way still works there.
    const area = h("textarea", { class: "offscreen", value: text, "aria-label": "text to copy" })
    const host = document.querySelector("dialog[open]") ?? document.body
    host.append(area)
    area.select()
    document.execCommand("copy")
    area.remove()
  }
  toast(`Copied ${what}`)
}
