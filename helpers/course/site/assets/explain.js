// A pasted out-of-memory error to its explanation. Python starts when somebody turns to the box, or follows an example.

import { python, start } from "./python.js";

const form = document.querySelector("form.paste");
const box = form.querySelector("textarea");
const explained = document.querySelector("#explained");
const examples = document.querySelector("#examples");

async function explain() {
  explained.setAttribute("aria-busy", "true");
  try {
    const found = await python("helpers.lesson.explained", "explained_as_json", box.value);
    if (found.error) {
      const told = document.createElement("pre");
      told.className = "error";
      told.textContent = found.error;
      explained.replaceChildren(told);
    } else {
      const page = new DOMParser().parseFromString(found.html, "text/html");
      explained.replaceChildren(...[...page.body.childNodes].map((node) => document.adoptNode(node)));
      explained.dataset.text = found.text;
    }
  } catch (error) {
    explained.textContent = error.message;
  } finally {
    explained.removeAttribute("aria-busy");
    explained.dataset.drawn = Number(explained.dataset.drawn ?? 0) + 1;
  }
}

box.addEventListener("focus", start, { once: true });
box.addEventListener("paste", () => setTimeout(explain));
form.addEventListener("submit", (event) => {
  event.preventDefault();
  explain();
});
examples?.addEventListener("click", (event) => {
  const example = event.target.closest("button");
  if (!example) return;
  box.value = document.getElementById(example.dataset.text).content.textContent.trim();
  explain();
});
if (form.dataset.eager !== undefined) start();
