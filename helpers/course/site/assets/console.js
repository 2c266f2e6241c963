// The console: a line to the workbook's command line, its answer under it. The arrow keys bring earlier lines back.

import { python } from "./python.js";

const form = document.querySelector("form.console");
const line = form.querySelector("input");
const log = document.querySelector("#log");
const lines = [];
let at = 0;

async function run(text) {
  lines.push(text);
  at = lines.length;
  history.replaceState(null, "", `#${encodeURIComponent(text)}`);
  const entry = document.createElement("section");
  const asked = Object.assign(document.createElement("code"), { className: "asked", textContent: `$ workbook ${text}` });
  const printed = Object.assign(document.createElement("pre"), { textContent: "…", tabIndex: 0 });
  entry.append(asked, printed);
  log.prepend(entry);
  try {
    const answer = await python("helpers.cli.console", "run_as_json", text);
    printed.textContent = answer.text;
    entry.dataset.code = answer.code;
  } catch (error) {
    printed.textContent = error.message;
    entry.dataset.code = 1;
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = line.value.trim().replace(/^workbook\s+/, "");
  if (text) run(text);
});
line.addEventListener("keydown", (event) => {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!step || !lines.length) return;
  event.preventDefault();
  at = Math.min(Math.max(at + step, 0), lines.length - 1);
  line.value = lines[at];
});
document.querySelector("#tries").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  line.value = button.textContent;
  run(line.value);
});

if (location.hash.length > 1) line.value = decodeURIComponent(location.hash.slice(1));
run(line.value);
