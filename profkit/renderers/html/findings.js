'use strict';
/** The button that opens or closes all findings. */
(() => {
  const button = document.querySelector('[data-open-all]');
  const all = [...document.querySelectorAll('details.finding')];
  if (!button || all.length < 2) return;
  const areOpen = () => all.every((details) => details.open);
  const label = () => { button.textContent = areOpen() ? 'Close all' : 'Open all'; };

  button.hidden = false;
  button.addEventListener('click', () => {
    const open = !areOpen();
    for (const details of all) details.open = open;
    label();
  });
  for (const details of all) details.addEventListener('toggle', label);
  label();
})();
