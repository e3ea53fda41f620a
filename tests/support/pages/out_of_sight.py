"""Finds in a browser what of a page nobody can see."""

from __future__ import annotations

# Whatever is wider than its box is told; a box that scrolls may be so where a shadow or a sentence says so.
OUT_OF_SIGHT = """() => {
  document.querySelectorAll("details").forEach(one => { one.open = true; });
  const root = document.documentElement, told = [];
  const named = one =>
    `${one.tagName}.${one.className} ${one.scrollWidth} in ${one.clientWidth}: ${one.innerText.slice(0, 60)}`;
  if (root.scrollWidth > root.clientWidth) told.push("the page: " + named(root));
  for (const one of document.querySelectorAll("main, main *:not(svg, svg *, select, option, input)")) {
    const style = getComputedStyle(one), clips = style.overflowX != "visible";
    if (style.display == "inline" || one.scrollWidth <= one.clientWidth) continue;
    const hint = one.previousElementSibling;
    const hinted = style.backgroundAttachment.includes("local")
      || (hint !== null && hint.matches(".hint") && hint.getBoundingClientRect().height > 0);
    if (!clips || !hinted) told.push(named(one));
  }
  return told;
}"""
