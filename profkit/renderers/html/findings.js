'use strict';
/** Findings: all of them open or closed at once. */
(() => {
  const button = document.querySelector('[data-open-all]');
  const all = [...document.querySelectorAll('details.finding')];
  if (!button || all.length < 2) return;

  function isOpen() {
    return all.every((details) => details.open);
  }

  function name() {
    button.textContent = isOpen() ? 'Close all' : 'Open all';
  }

  button.hidden = false;
  button.addEventListener('click', () => {
    const open = !isOpen();
    for (const details of all) details.open = open;
    name();
  });
  for (const details of all) details.addEventListener('toggle', name);
  name();
})();
