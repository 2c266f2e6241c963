// What MathJax finds when it starts: the marks around a formula, and nothing to fetch from elsewhere.
window.MathJax = {
  tex: { inlineMath: [["\\(", "\\)"]], displayMath: [["\\[", "\\]"]] },
  svg: { fontCache: "local" },
  options: { enableMenu: false, processHtmlClass: "math", ignoreHtmlClass: "chapter" },
};
