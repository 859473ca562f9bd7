// Starts the interpreter: in a worker of the page, and in node for the build and the tests.

/** The bytes behind gzip; a server may have unpacked them. */
export async function unpacked(bytes) {
  const [first, second] = new Uint8Array(bytes, 0, 2);
  if (first !== 0x1f || second !== 0x8b) return new Uint8Array(bytes);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Puts every file where the interpreter looks for it: straight into its folder, for a thousand paths take half a second. */
function put(FS, files) {
  const folders = new Map();
  const encoder = new TextEncoder();
  for (const [name, text] of Object.entries(files)) {
    const path = `/inferplan/${name}`;
    const end = path.lastIndexOf("/");
    const place = path.slice(0, end);
    if (!folders.has(place)) {
      FS.mkdirTree(place);
      folders.set(place, FS.lookupPath(place).node);
    }
    const folder = folders.get(place);
    const file = folder.node_ops.mknod(folder, path.slice(end + 1), 0o100644, 0);
    file.contents = text.startsWith("base64:") ? Uint8Array.from(atob(text.slice(7)), (c) => c.charCodeAt(0)) : encoder.encode(text);
    file.usedBytes = file.contents.length;
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
