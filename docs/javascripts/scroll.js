// Material wraps wide tables into boxes that scroll. Let the keyboard reach those that are wider than the page.
function letTheKeyboardIn() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (box.scrollWidth > box.clientWidth) {
      box.tabIndex = 0;
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", "A wide table");
    }
  }
}

new MutationObserver(letTheKeyboardIn).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", letTheKeyboardIn);
letTheKeyboardIn();
