// The page's Python, in a worker: it loads Pyodide and this package from the site, then answers calls with JSON.
// Messages in: {start: address of the folder python/} once, then {id, module, name, args}.
// Messages out: {progress, of, stage}, {ready}, {failed}, {id, result} or {id, error}.

const SOURCES = "/workbook";
let ready;

self.onmessage = async ({ data }) => {
  if (data.start) {
    ready = start(data.start);
    ready.then(() => self.postMessage({ ready: true }), (error) => self.postMessage({ failed: String(error) }));
    return;
  }
  try {
    const pyodide = await ready;
    const module = pyodide.pyimport(data.module);
    self.postMessage({ id: data.id, result: module[data.name](...data.args) });
  } catch (error) {
    self.postMessage({ id: data.id, error: String(error) });
  }
};

async function start(folder) {
  const manifest = await (await fetch(folder + "manifest.json")).json();
  const counted = counting(folder, manifest);
  self.fetch = counted;
  const [{ loadPyodide }, sources] = await Promise.all([
    import(folder + "pyodide.mjs"),
    counted(folder + "helpers.zip").then((response) => response.arrayBuffer()),
  ]);
  const pyodide = await loadPyodide({ indexURL: folder });
  self.postMessage({ stage: "Reading the workbook's modules" });
  pyodide.FS.mkdirTree(SOURCES);
  pyodide.unpackArchive(sources, "zip", { extractDir: SOURCES });
  pyodide.runPython(`import sys; sys.path.insert(0, "${SOURCES}"); sys.dont_write_bytecode = True`);
  return pyodide;
}

// fetch, with the bytes told as they come; a packed file is asked for under its packed name, and unpacked here.
function counting(folder, { unpacked, packed }) {
  const plain = self.fetch.bind(self);
  const of = Object.values(unpacked).reduce((sum, size) => sum + size, 0);
  let progress = 0;
  return async (request, options) => {
    const address = String(request.url ?? request);
    const name = address.slice(folder.length);
    if (!address.startsWith(folder) || !(name in unpacked)) return plain(request, options);
    const response = await plain(packed.includes(name) ? address + ".packed" : address, options);
    if (!response.ok) throw new Error(`${name}: the server answers ${response.status}`);
    const body = packed.includes(name) ? response.body.pipeThrough(new DecompressionStream("gzip")) : response.body;
    const told = new TransformStream({
      transform(chunk, controller) {
        progress += chunk.byteLength;
        self.postMessage({ progress, of });
        controller.enqueue(chunk);
      },
    });
    const type = name.endsWith(".wasm") ? "application/wasm" : "application/octet-stream";
    return new Response(body.pipeThrough(told), { headers: { "Content-Type": type } });
  };
}
