// Before the first paint: the theme that the reader chose here, if any.
try {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // no storage: the system's theme it is
}
