// The page: a command line, a form that writes it, and what the command prints. The address holds the question.
const at = (id) => document.getElementById(id);
const EXAMPLES = [
  "inferplan estimate llama-3.1-8b --gpu h100-sxm --batch 8",
  "inferplan fit llama-3.1-70b --context 32k --in-flight 8",
  "inferplan fit --gpu rtx-4090",
  "inferplan compare llama-3.1-8b --gpu a100-80gb-sxm,h100-sxm,h200-sxm --batch 16",
  "inferplan cost llama-3.1-70b --gpu h100-sxm --tp 4",
  "inferplan simulate llama-3.1-8b --gpu h100-sxm --rate 5 --requests 300",
  "inferplan explain memory.weights llama-3.1-70b --gpu h100-sxm --tp 4",
];
const PARTS = ["question", "model", "gpu", "count", "quant", "prompt", "output", "users"];
const UNSERVED = "\nhint: a page of a file system has no programs: serve the folder over HTTP";
let worker, running, waiting, begun;

/** The question as the part of an address behind #, which people can read. */
const hashOf = (line) => `#${encodeURIComponent(line).replaceAll("%20", "+").replaceAll("%2C", ",").replaceAll("%3D", "=")}`;
const lineOf = (hash) => {
  try {
    return decodeURIComponent(hash.slice(1).replaceAll("+", "%20"));
  } catch {
    return "";
  }
};

/** The command of the form. */
function written() {
  const [question, model, gpu, count, quant, prompt, output, users] = PARTS.map((name) => at(name).value.trim());
  const words = ["inferplan", question, model];
  const say = (option, value) => value && words.push(option, value);
  say("--gpu", gpu);
  if (count > 1) say("--tp", count);
  say("--quant", quant);
  if (question === "fit") {
    say("--context", String(Number(prompt) + Number(output)));
    say("--in-flight", users);
  } else {
    say("--prompt", prompt);
    say("--output", output);
    say(question === "simulate" ? "--in-flight" : "--batch", users);
  }
  if (question === "simulate") say("--requests", "300");
  return words.map((word) => (/^[\w.,:=/@-]+$/.test(word) ? word : `'${word.replaceAll("'", "")}'`)).join(" ");
}

function begin() {
  worker = new Worker("worker.js", { type: "module" });
  running = null;
  worker.onmessage = ({ data }) => {
    if (data.ready) say(running ? "Working" : "Ready");
    else if (data.failed) fail(data.failed, data.unready);
    else shown(data);
  };
  worker.onerror = (event) => fail(event.message || "the interpreter could not be loaded", !event.message);
}

const say = (text) => (at("state").textContent = text);

function fail(why, unready) {
  running = null;
  at("answer").hidden = false;
  at("stop").disabled = true;
  at("notes").dataset.code = 1;
  at("notes").textContent = `error: ${why}${unready ? UNSERVED : ""}`;
  say("Failed");
  if (waiting !== undefined && !unready) run(waiting);
}

function shown({ stdout, stderr, code }) {
  at("answer").hidden = false;
  at("said").textContent = stdout;
  at("notes").textContent = stderr;
  at("notes").dataset.code = code;
  at("stop").disabled = true;
  const seconds = ((performance.now() - begun) / 1000).toFixed(1);
  say(`Done in ${seconds} s, exit code ${code}`);
  document.body.dataset.answered = running;
  document.body.dataset.at = performance.now();
  running = null;
  if (waiting !== undefined) run(waiting);
}

/** Runs a command; one that comes while another runs waits for it, the last one alone. */
function run(line) {
  if (!line.trim()) return;
  if (running) {
    waiting = line;
    return;
  }
  waiting = undefined;
  running = line;
  begun = performance.now();
  at("line").value = line;
  at("asked").textContent = line.startsWith("inferplan") ? line : `inferplan ${line}`;
  at("stop").disabled = false;
  say("Working");
  worker.postMessage(line);
}

/** Asks, and puts the question into the address. */
function ask(line) {
  if (location.hash !== hashOf(line)) history.pushState(null, "", hashOf(line));
  run(line);
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask(at("line").value);
});
at("line").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    ask(at("line").value);
  }
});
at("stop").addEventListener("click", () => {
  worker.terminate();
  waiting = undefined;
  at("stop").disabled = true;
  begin();
  say("Stopped; loading anew");
});
at("copy").addEventListener("click", async () => {
  const address = new URL(hashOf(at("line").value), location.href).href;
  history.replaceState(null, "", address);
  try {
    await navigator.clipboard.writeText(address);
    say("Link copied");
  } catch {
    say("The link is in the address bar");
  }
});
at("parts").addEventListener("input", () => (at("line").value = written()));
at("parts").addEventListener("submit", (event) => {
  event.preventDefault();
  ask(written());
});
addEventListener("popstate", () => run(lineOf(location.hash)));
for (const line of EXAMPLES) {
  const link = document.createElement("a");
  link.href = hashOf(line);
  link.textContent = line;
  link.addEventListener("click", (event) => {
    event.preventDefault();
    ask(line);
  });
  const item = document.createElement("li");
  item.append(link);
  at("examples").querySelector("ul").append(item);
}

if (location.search === "?answer") document.body.classList.add("only");
begin();
const first = lineOf(location.hash);
at("line").value = first || written();
if (first) run(first);
const lists = await (await fetch("choices.json")).json();
for (const [name, values] of Object.entries(lists)) {
  at(name)?.append(...values.map((value) => Object.assign(document.createElement("option"), { value })));
}
