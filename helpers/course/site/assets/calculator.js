// A calculator's page: controls to settings, settings to Python, its answer into the page, and the address kept in step.

import { python } from "./python.js";
import { left } from "./visit.js";

const MODULE = "helpers.lesson.calculators.from_address";
const form = document.querySelector("form.controls");
const name = form.dataset.calculator;
const answer = document.querySelector("#answer");
const status = document.querySelector("#status");
const play = document.querySelector("#play");
const file = document.querySelector("#set-config"); // a config.json, where the calculator takes one
const slots = new Map(); // by place in the answer: an element that never gets lower, so that nothing below it moves
let unknown = []; // settings of the address that are no controls: Python says so
let config; // the text of the chosen config, or the first bytes of a GGUF file; they never leave this page
let called = ""; // the file, as its reader calls it
let busy = false;
let drawnOnce = false; // until then what stands there is the answer to the settings at first
let again = false;
let playing;

const controls = [...form.querySelectorAll("[name]")];
const first = new Map(controls.map((control) => [control.name, value(control)]));

function value(control) {
  return control.type === "range" ? choices(control)[Number(control.value)] : control.value;
}

function choices(control) {
  return JSON.parse(control.dataset.choices);
}

function setValue(control, text) {
  if (control.type === "range") {
    const known = choices(control);
    if (!known.includes(text) && /^-?\d+$/.test(text)) known.push(text);
    known.sort((one, other) => Number(one) - Number(other));
    control.dataset.choices = JSON.stringify(known);
    control.max = known.length - 1;
    control.value = Math.max(0, known.indexOf(text));
  } else {
    if (control.tagName === "SELECT" && ![...control.options].some((option) => option.value === text)) {
      control.add(new Option(text, text));
    }
    control.value = text;
  }
  tell(control);
}

function tell(control) {
  if (control.type !== "range") return;
  const text = Number(value(control)).toLocaleString("en-US");
  control.setAttribute("aria-valuetext", text);
  form.querySelector(`output[for="${control.id}"]`).textContent = text;
}

function moved() {
  const now = controls.map((control) => [control.name, value(control)]);
  return Object.fromEntries([...now.filter(([key, text]) => text !== first.get(key)), ...unknown]);
}

function restore() {
  const asked = new URLSearchParams(location.hash.slice(1));
  unknown = [...asked].filter(([key]) => !first.has(key));
  for (const control of controls) setValue(control, asked.get(control.name) ?? first.get(control.name));
  open();
  forget();
}

// What an address moves behind *more* is to be seen.
function open() {
  const more = form.querySelector("details.more");
  if (more) more.open ||= controls.some((control) => more.contains(control) && value(control) !== first.get(control.name));
}

function forget() {
  config = undefined;
  if (file) file.value = "";
  told();
}

// Where a file takes the model's place, what the model's control says counts no more.
function told() {
  form.elements.model?.closest(".control").classList.toggle("replaced", config !== undefined);
}

// One byte more than a config may have is enough to say that there are too many. Of a GGUF file the header is enough.
async function choose() {
  const [chosen] = file.files;
  called = chosen?.name ?? "";
  try {
    const header = chosen?.name.endsWith(".gguf") && chosen.slice(0, Number(file.dataset.header));
    config = header ? new Uint8Array(await header.arrayBuffer()) : await chosen?.slice(0, Number(file.dataset.most) + 1).text();
  } catch {
    config = undefined;
    return show({ error: `${chosen.name} cannot be read. Choose it again.` });
  }
  told();
  return redraw();
}

function remember(settings) {
  const query = new URLSearchParams(settings).toString();
  history.replaceState(null, "", query ? `#${query}` : location.pathname + location.search);
}

// One call at a time: while a slider moves faster than Python answers, what it passed is skipped.
async function redraw() {
  remember(moved());
  if (drawnOnce || Object.keys(moved()).length || config) answer.setAttribute("aria-busy", "true");
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  try {
    do {
      again = false;
      show(await python(MODULE, "drawn_as_json", name, JSON.stringify(moved()), config, called));
    } while (again);
  } catch (error) {
    show({ error: error.message });
  } finally {
    busy = false;
    drawnOnce = true;
    answer.removeAttribute("aria-busy");
  }
}

function show(drawn) {
  if (drawn.error) {
    const told = Object.assign(document.createElement("pre"), { className: "error", textContent: drawn.error });
    put(told.outerHTML);
    status.textContent = drawn.error;
    return;
  }
  put(drawn.html.replaceAll('data-to="', `href="${form.dataset.top}`));
  status.textContent = drawn.title;
  answer.dataset.text = drawn.text;
  answer.dataset.drawn = Number(answer.dataset.drawn ?? 0) + 1;
  for (const control of controls) control.closest(".control").classList.toggle("unused", !drawn.used.includes(control.name));
  if (drawn.last) form.elements.step.dataset.last = drawn.last;
}

function put(html) {
  const page = new DOMParser().parseFromString(html, "text/html");
  const parts = [...page.body.children];
  const places = Math.max(parts.length, slots.size);
  if (!slots.size) answer.replaceChildren();
  for (let place = 0; place < places; place++) {
    if (!slots.has(place)) {
      slots.set(place, answer.appendChild(document.createElement("div")));
    }
    const slot = slots.get(place);
    const opened = [...slot.querySelectorAll("details")].map((one) => one.open);
    slot.replaceChildren(...(parts[place] ? [document.adoptNode(parts[place])] : []));
    slot.querySelectorAll("details").forEach((one, at) => (one.open = opened[at] ?? one.open));
    keepHeight(slot);
  }
}

// A slider moves nothing below it. An answer that is much shorter than the last leaves no gap, either.
function keepHeight(slot) {
  const kept = parseFloat(slot.style.minHeight) || 0;
  slot.style.minHeight = "";
  const height = slot.offsetHeight;
  slot.style.minHeight = `${height < 0.8 * kept ? height : Math.max(kept, height)}px`;
}

function stop() {
  clearInterval(playing);
  playing = undefined;
  play.textContent = "Play the steps";
}

function next() {
  const step = form.elements.step;
  const now = Number(value(step));
  if (now >= Number(step.dataset.last ?? now)) return stop();
  setValue(step, String(now + 1));
  return redraw();
}

form.addEventListener("input", (event) => {
  if (event.target === file) return;
  unknown = [];
  if (event.target.name === "model") forget();
  tell(event.target);
  if (event.target.type !== "text") redraw();
});
form.addEventListener("change", (event) => event.target.type === "text" && redraw());
form.addEventListener("submit", (event) => {
  event.preventDefault();
  redraw();
});
form.addEventListener("reset", (event) => {
  event.preventDefault();
  unknown = [];
  for (const control of controls) setValue(control, first.get(control.name));
  forget();
  redraw();
});
form.querySelector(".presets")?.addEventListener("click", (event) => {
  const values = Object.entries(JSON.parse(event.target.dataset.preset ?? "{}"));
  for (const [key, text] of values) setValue(form.elements[key], String(text));
  if (values.some(([key]) => key === "model")) forget();
  if (values.length) redraw();
});
file?.addEventListener("change", choose);
play?.addEventListener("click", () => {
  if (playing) return stop();
  play.textContent = "Pause";
  playing = setInterval(next, Number(play.dataset.interval));
  return next();
});
document.querySelector("#copy").addEventListener("click", async (event) => {
  await navigator.clipboard.writeText(location.href);
  event.target.textContent = config ? "Link copied, without the file" : "Link copied";
  setTimeout(() => (event.target.textContent = "Copy a link to these settings"), 2000);
});
window.addEventListener(
  "hashchange",
  () => {
    restore();
    redraw();
  },
  { signal: left() },
);
window.addEventListener(
  "resize",
  () => {
    for (const slot of slots.values()) slot.style.minHeight = "";
  },
  { signal: left() },
);
left().addEventListener("abort", () => clearInterval(playing));

restore();
redraw();
