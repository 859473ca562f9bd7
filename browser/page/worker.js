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
const fail = (error, unready) => postMessage({ failed: String(error.message ?? error), unready });
const unready = (error) => fail(error, true);
ready.then(() => postMessage({ ready: true }), unready);
onmessage = ({ data: line }) =>
  ready.then((python) => {
    try {
      postMessage(answer(python, line));
    } catch (error) {
      fail(error, false);
    }
  }, unready);
