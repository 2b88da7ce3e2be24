// The copy button of a ```console block copies its commands: without the prompts, and without the
// output. The theme copies `data-clipboard-text` where a button has it, and the block otherwise.
// A click reaches this listener first, since it listens while the event goes down to the button.
const COMMAND = "$ "
const CONTINUED = "> "

function commandsOf(text) {
  const commands = []
  let inCommand = false
  for (const line of text.split("\n")) {
    const starts = line.startsWith(COMMAND)
    inCommand = starts || (inCommand && line.startsWith(CONTINUED))
    if (inCommand) commands.push(line.slice(2))
  }
  return commands.join("\n")
}

document.addEventListener(
  "click",
  (event) => {
    const button = event.target.closest?.("[data-clipboard-target]")
    const block = button?.closest(".language-console")
    const code = block?.querySelector("pre code")
    if (code) button.setAttribute("data-clipboard-text", commandsOf(code.textContent) || code.textContent)
  },
  { capture: true },
)
