// Answers command lines away from the page, which stays alive meanwhile.
import { loadPyodide } from "./pyodide/pyodide.mjs";
import { answer, start, unpacked } from "./start.mjs";

const fetched = async (name) => {
  const reply = await fetch(new URL(name, import.meta.url));
  if (!reply.ok) throw new Error(`${name}: ${reply.status} ${reply.statusText}`);
  return unpacked(await reply.arrayBuffer());
};
const files = fetched("files.json.gz").then((bytes) => JSON.parse(new TextDecoder().decode(bytes)));
const ready = start({
  loadPyodide,
  indexURL: new URL("pyodide/", import.meta.url).href,
  files,
  snapshot: fetched("snapshot.bin.gz"),
});
ready.then(
  () => postMessage({ ready: true }),
  (error) => postMessage({ failed: String(error.message ?? error) }),
);
onmessage = async ({ data: line }) => {
  const python = await ready;
  postMessage(answer(python, line));
};
