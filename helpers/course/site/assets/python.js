// Calls of Python from a page. The worker starts at the first call, or when `start` is called, and lives with the visit.

const here = new URL("..", import.meta.url);
const waiting = new Map();
let worker;
let calls = 0;
let last = []; // what was said, for the next page

export function start() {
  if (worker) return;
  // A worker from a blob has the page's own rules on what may be fetched; one from an address would have none.
  const code = `import ${JSON.stringify(new URL("worker.js", import.meta.url).href)};`;
  const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  worker = new Worker(address, { type: "module" });
  worker.onmessage = ({ data }) => heard(data);
  worker.onerror = (event) => heard({ failed: event.message || "the worker did not start" });
  worker.postMessage({ start: new URL("python/", here).href });
  say("Loading Python", 0);
}

export function python(module, name, ...args) {
  start();
  const id = ++calls;
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, module, name, args });
  });
}

function heard(data) {
  if (data.progress) say(`Loading Python: ${megabytes(data.progress)} of ${megabytes(data.of)} MB`, (0.9 * data.progress) / data.of);
  else if (data.stage) say(data.stage, 0.92);
  else if (data.ready) document.documentElement.dataset.python = "ready";
  else if (data.failed) failed(data.failed);
  else answered(data);
}

function answered({ id, result, error }) {
  const { resolve, reject } = waiting.get(id);
  waiting.delete(id);
  if (error) reject(new Error(error));
  else resolve(JSON.parse(result));
  say("Python runs in this page. Nothing that you type or paste leaves your browser.", 1);
}

function failed(why) {
  say(`Python could not be loaded: ${why}. The text and pictures of this page stand as they are.`, 0);
  for (const { reject } of waiting.values()) reject(new Error(why));
  waiting.clear();
}

document.addEventListener("visited", () => last.length && say(...last));

function say(text, share) {
  last = [text, share];
  const said = document.querySelector("#python .said");
  const bar = document.querySelector("#python progress");
  if (!said) return;
  said.textContent = text;
  bar.value = share;
}

const megabytes = (bytes) => (bytes / 1e6).toFixed(1);
