// Starts the interpreter: in a worker of the page, and in node for the build and the tests.

/** The bytes behind gzip; a server may have unpacked them. */
export async function unpacked(bytes) {
  const [first, second] = new Uint8Array(bytes, 0, 2);
  if (first !== 0x1f || second !== 0x8b) return new Uint8Array(bytes);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Puts every file where the interpreter looks for it. */
function put(FS, files) {
  const made = new Set();
  for (const [name, text] of Object.entries(files)) {
    const path = `/inferplan/${name}`;
    const folder = path.slice(0, path.lastIndexOf("/"));
    if (!made.has(folder)) {
      FS.mkdirTree(folder);
      made.add(folder);
    }
    const bytes = text.startsWith("base64:") ? Uint8Array.from(atob(text.slice(7)), (c) => c.charCodeAt(0)) : text;
    FS.writeFile(path, bytes);
  }
  FS.mkdirTree("/home/pyodide");
  FS.chdir("/home/pyodide");
}

/** An interpreter with the commands: from a snapshot of its memory, or without one as it is built. */
export async function start({ loadPyodide, indexURL, files, snapshot }) {
  const memory = snapshot ? { _loadSnapshot: snapshot } : { _makeSnapshot: true };
  const python = await loadPyodide({ indexURL, ...memory });
  put(python.FS, await files);
  if (!snapshot) python.runPython("import sys; sys.path.insert(0, '/inferplan'); import boot; boot.prepare()");
  return python;
}

/** What a command line prints: { stdout, stderr, code }. */
export function answer(python, line) {
  const boot = python.pyimport("boot");
  try {
    return JSON.parse(boot.answer(line));
  } finally {
    boot.destroy();
  }
}
