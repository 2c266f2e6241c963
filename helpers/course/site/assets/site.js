// What every page has: the switch between light and dark, and the search over the book.

import "./visit.js";

const root = document.documentElement;
const top_ = new URL("..", import.meta.url);
const box = document.querySelector("#search");
const found = document.querySelector("#found");
const MOST = 12;
let index;

document.querySelector("#theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // no storage: it holds for this page
  }
});

async function search() {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return hide();
  index ??= await (await fetch(new URL("search.json", top_))).json();
  const hits = index.map((entry) => ({ ...entry, score: score(entry, words) })).filter((entry) => entry.score);
  hits.sort((one, other) => other.score - one.score);
  found.replaceChildren(...(hits.length ? hits.slice(0, MOST).map((hit) => shown(hit, words)) : [nothing()]));
  found.hidden = false;
}

// Every word must occur; in a title it counts for more.
function score({ title, page, text }, words) {
  let sum = 0;
  for (const word of words) {
    const inTitle = title.toLowerCase().includes(word) || page.toLowerCase().includes(word);
    const times = text.toLowerCase().split(word).length - 1;
    if (!inTitle && !times) return 0;
    sum += 10 * inTitle + Math.min(times, 5);
  }
  return sum;
}

function shown({ title, page, address, text }, words) {
  const item = document.createElement("li");
  const link = Object.assign(document.createElement("a"), { href: new URL(address, top_).href });
  link.append(Object.assign(document.createElement("strong"), { textContent: title === page ? title : `${page}: ${title}` }));
  const at = Math.max(0, text.toLowerCase().indexOf(words[0]) - 60);
  link.append(Object.assign(document.createElement("span"), { textContent: text.slice(at, at + 160) }));
  item.append(link);
  return item;
}

function nothing() {
  return Object.assign(document.createElement("li"), { textContent: "Nothing found.", className: "nothing" });
}

function hide() {
  found.hidden = true;
}

box.addEventListener("input", search);
box.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hide();
  if (event.key === "Enter") found.querySelector("a")?.click();
});
document.addEventListener("click", (event) => {
  if (!event.target.closest("search")) hide();
});
document.addEventListener("visited", hide);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, textarea, select")) {
    event.preventDefault();
    box.focus();
  }
});
