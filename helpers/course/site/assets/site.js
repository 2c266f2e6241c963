// What every page has: the switch between light and dark, and the search over the book.

import "./visit.js";

const root = document.documentElement;
const top_ = new URL("..", import.meta.url);
const box = document.querySelector("#search");
const found = document.querySelector("#found");
const MOST = 12;
const FEW = 4;
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
  const words = box.value.trim();
  if (!words) return hide();
  index ??= await built();
  if (words !== box.value.trim()) return; // typed on meanwhile
  const near = { prefix: (term) => term.length > 2, fuzzy: (term) => term.length > 5 && 0.25 };
  const boost = { title: 4, page: 2 };
  const all = index.search(words, { ...near, boost, combineWith: "AND" });
  const some = all.length < FEW ? index.search(words, { ...near, boost }) : []; // of the words, behind those of all
  const hits = [...all, ...some.filter(({ id }) => !all.some((hit) => hit.id === id))];
  found.replaceChildren(...(hits.length ? hits.slice(0, MOST).map(shown) : [nothing()]));
  found.hidden = false;
}

// Ranked by MiniSearch: how often a word stands in a section, how rare it is in the book, and more for titles.
async function built() {
  const [{ default: MiniSearch }, sections] = await Promise.all([
    import("../minisearch/index.js"),
    fetch(new URL("search.json", top_)).then((response) => response.json()),
  ]);
  const all = ["title", "page", "text", "address"];
  const made = new MiniSearch({ fields: ["title", "page", "text"], storeFields: all });
  made.addAll(sections.map((section, id) => ({ id, ...section })));
  return made;
}

function shown({ title, page, address, text, terms }) {
  const item = document.createElement("li");
  const link = Object.assign(document.createElement("a"), { href: new URL(address, top_).href });
  link.append(Object.assign(document.createElement("strong"), { textContent: title === page ? title : `${page}: ${title}` }));
  const snippet = document.createElement("span");
  snippet.append(...marked(around(text, terms), terms));
  link.append(snippet);
  item.append(link);
  return item;
}

// Whole words before and after the first that was found.
function around(text, terms) {
  const words = text.split(/\s+/);
  const first = Math.max(0, words.findIndex((word) => terms.some((term) => word.toLowerCase().includes(term))));
  const start = Math.max(0, first - 8);
  const told = words.slice(start, start + 28).join(" ");
  return `${start ? "… " : ""}${told}${start + 28 < words.length ? " …" : ""}`;
}

function marked(text, terms) {
  const found = new RegExp(`(${terms.map((term) => term.replace(/[.*+?^${}()|[\]\\\/]/g, "\\$&")).join("|")})`, "giu");
  return text.split(found).map((part, at) => (at % 2 ? Object.assign(document.createElement("mark"), { textContent: part }) : part));
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
