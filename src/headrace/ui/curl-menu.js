// The commands that do from a shell what this page does with the open stream.

import { copy, h, icon, replace } from "./dom.js"
import { isJson } from "./stream-reader.js"

/** Each action on `stream` as a command. `offset` is where the page has read to, if it has. */
function commands(server, stream, contentType, offset) {
  const url = (query) => server.url(stream.path, query)
  const headers = { "Content-Type": contentType ?? "application/octet-stream" }
  const fork = { "Stream-Forked-From": server.serverPath(stream) }
  const reads = {
    "Read from the start": server.curl("GET", url({ offset: "-1" })),
    "Read on from here": offset ? server.curl("GET", url({ offset })) : null,
    "Follow the tail": server.curl("GET", url({ offset: "now", live: "sse" })),
    Metadata: server.curl("HEAD", url()),
    Details: server.curl("GET", server.url(stream.inspectionPath)),
  }
  const writes = {
    Append: server.curl("POST", url(), headers, isJson(headers["Content-Type"]) ? '{"hello":"world"}' : "hello"),
    Fork: server.curl("PUT", server.url(server.stream(`${stream.name}-fork`).path), fork),
    Close: server.curl("POST", url(), { "Stream-Closed": "true" }),
    Delete: server.curl("DELETE", url()),
  }
  const all = Object.entries(stream.isReadOnly ? reads : { ...reads, ...writes })
  return all.filter(([, command]) => command !== null)
}

/** A button and the menu it opens; `subject()` gives what `commands` needs after the server. */
export function curlMenu(server, subject) {
  const menu = h("div", { class: "menu", popover: "auto", id: "curl-menu" })
  const entry = ([name, command]) =>
    h(
      "button",
      { type: "button", on: { click: () => (menu.hidePopover(), copy(command, "the command")) } },
      h("span", {}, name),
      h("code", {}, command),
    )
  menu.addEventListener("beforetoggle", (event) => {
    if (event.newState === "open") replace(menu, commands(server, ...subject()).map(entry))
  })
  const button = h(
    "button",
    { type: "button", class: "icon-button", popovertarget: "curl-menu", title: "Copy as curl", "aria-label": "Copy as curl" },
    icon("terminal"),
  )
  return [button, menu]
}
