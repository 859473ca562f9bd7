// Writes the memory of an interpreter that has imported everything: node snapshot.mjs FOLDER
import { readFileSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { gunzipSync, gzipSync } from "node:zlib";

process.on("uncaughtException", (error) => {
  console.error(String(error.message ?? error).slice(-4000));
  process.exit(1);
});
const folder = resolve(process.argv[2]);
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide/pyodide.mjs`));
const { start } = await import(pathToFileURL(`${folder}/start.mjs`));
const files = JSON.parse(gunzipSync(readFileSync(`${folder}/files.json.gz`)));
const python = await start({ loadPyodide, indexURL: `${folder}/pyodide/`, files });
python.runPython("import gc; gc.collect()");
writeFileSync(`${folder}/snapshot.bin.gz`, gzipSync(python.makeMemorySnapshot(), { level: 6 }));
process.exit(0);
