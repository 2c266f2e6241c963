// One visit, many pages: a link within the site changes what is shown and the address, and Python runs on.
// What a page's script hangs on the window ends with `left()`, when the page is left.

const site = new URL("..", import.meta.url).href;
const icon = document.querySelector("link[rel=icon]");
icon.href = icon.href; // whole, since addresses change under it
let leaving = new AbortController();
let here = location.pathname;
let visits = 0;

export const left = () => leaving.signal;

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  const kept = event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey;
  if (!link || kept || link.target) return;
  const to = new URL(link.href);
  if (!to.href.startsWith(site) || !to.pathname.endsWith(".html") || to.pathname === here) return;
  event.preventDefault();
  history.pushState(null, "", to);
  visit();
});
window.addEventListener("popstate", () => location.pathname !== here && visit());

async function visit() {
  const asked = (here = location.pathname);
  let page;
  try {
    const response = await fetch(asked);
    if (!response.ok) throw new Error(response.status);
    page = new DOMParser().parseFromString(await response.text(), "text/html");
  } catch {
    return location.reload(); // the browser says what is wrong
  }
  if (asked === here) await show(page);
}

async function show(page) {
  leaving.abort();
  leaving = new AbortController();
  document.title = page.title;
  for (const part of ["header.site .name", "header.site nav", "footer.site", "main"]) {
    document.querySelector(part).replaceWith(document.adoptNode(page.querySelector(part)));
  }
  for (const sheet of page.head.querySelectorAll("link[rel=stylesheet]")) {
    if (![...document.head.querySelectorAll("link")].some(({ href }) => href === sheet.href)) document.head.append(sheet);
  }
  document.dispatchEvent(new Event("visited"));
  for (const { src } of page.head.querySelectorAll("script[type=module]")) {
    if (!src.endsWith("/site.js")) await import(`${src}?visit=${++visits}`); // again, for this page's elements
  }
  await formulas(page);
  const main = document.querySelector("main");
  main.tabIndex = -1;
  main.focus({ preventScroll: true });
  const at = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (at) at.scrollIntoView();
  else window.scrollTo(0, 0);
}

// MathJax sets what it finds when it is loaded; later pages ask it again.
async function formulas(page) {
  const scripts = [...page.head.querySelectorAll("script[src]:not([type])")].filter(({ src }) => !src.endsWith("/theme.js"));
  if (window.MathJax?.typesetPromise) return scripts.length && window.MathJax.typesetPromise();
  for (const { src } of scripts) {
    await new Promise((done) => {
      document.head.append(Object.assign(document.createElement("script"), { src, onload: done, onerror: done }));
    });
  }
}
