// Examples of the command line run below themselves, where the folder of `make site` stands beside these pages.
(() => {
  const place = new URL("run/", document.currentScript.src);
  const hash = (line) => `#${encodeURIComponent(line).replaceAll("%20", "+")}`;

  /** The example of a block of code: its first line, with those that it goes on in. commands: those that run there. */
  function lineOf(code, commands) {
    const text = code.textContent.replaceAll("\\\n", " ").trim().split("\n")[0];
    const command = /^\$?\s*inferplan ([\w-]+)/.exec(text)?.[1];
    return commands.includes(command) && !/[|<>;]|\.(ya?ml|json|csv|gguf)\b/.test(text) ? text.replace(/^\$\s*/, "").replaceAll(/\s+/g, " ") : "";
  }

  function run(block, line) {
    document.querySelectorAll("iframe.run").forEach((one) => one.remove());
    const frame = Object.assign(document.createElement("iframe"), { className: "run", title: line, src: `${place}?answer${hash(line)}` });
    frame.style.cssText = "width: 100%; height: 24rem; border: 1px solid #8888; border-radius: 6px; resize: vertical";
    block.after(frame);
  }

  async function offer() {
    const codes = [...document.querySelectorAll("pre > code")];
    const reply = codes.length ? await fetch(new URL("choices.json", place)).catch(() => ({})) : {};
    if (!reply.ok) return;
    const { commands } = await reply.json();
    for (const [block, line] of codes.map((code) => [code.parentElement, lineOf(code, commands)])) {
      if (!line) continue;
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Run", className: "md-button" });
      button.setAttribute("aria-label", `Run ${line}`);
      button.style.cssText = "padding: .2em .9em; margin: .3em 0";
      button.addEventListener("click", () => run(button, line));
      block.after(button);
    }
  }
  document.readyState === "loading" ? addEventListener("DOMContentLoaded", offer) : offer();
})();
