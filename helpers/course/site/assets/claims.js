// The ledger's filters: a verdict, a chapter, a word. Without scripts all claims are there.

const form = document.querySelector("form.filter");
const claims = [...document.querySelectorAll("article.claim")];
const count = document.querySelector("#count");

function filter() {
  const { verdict, chapter, word } = Object.fromEntries(new FormData(form));
  const wanted = word.toLowerCase();
  for (const claim of claims) {
    const fits = (!verdict || claim.dataset.verdict === verdict) && (!chapter || claim.dataset.chapter === chapter);
    claim.hidden = !fits || !claim.textContent.toLowerCase().includes(wanted);
  }
  count.textContent = `${claims.filter((claim) => !claim.hidden).length} of ${claims.length} claims`;
}

form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
filter();
