// Answers command lines with the built folder: node ask.mjs FOLDER LINES.json ANSWERS.json
import { readFileSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { gunzipSync } from "node:zlib";

process.on("uncaughtException", (error) => {
  console.error(String(error.message ?? error).slice(-4000));
  process.exit(1);
});
const [folder, lines, answers] = [resolve(process.argv[2]), process.argv[3], process.argv[4]];
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide/pyodide.mjs`));
const { answer, start } = await import(pathToFileURL(`${folder}/start.mjs`));
const [files, snapshot] = ["files.json.gz", "snapshot.bin.gz"].map((name) => gunzipSync(readFileSync(`${folder}/${name}`)));
const python = await start({ loadPyodide, indexURL: `${folder}/pyodide/`, files: JSON.parse(files), snapshot });
const today = process.env.SOURCE_DATE_EPOCH; // tests say which day it is: prices are so many days old
if (today) python.runPython(`import os; os.environ["SOURCE_DATE_EPOCH"] = "${Number(today)}"`);
const said = [];
for (const line of JSON.parse(readFileSync(lines))) {
  const begin = performance.now();
  said.push({ ...answer(python, line), seconds: (performance.now() - begin) / 1000 });
}
writeFileSync(answers, JSON.stringify(said));
process.exit(0);
