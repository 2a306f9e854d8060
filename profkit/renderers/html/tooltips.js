'use strict';
/** One tooltip at a time, for the element under the pointer or with the focus; Escape hides it. */
(() => {
  const root = document.documentElement;
  const tip = profkit.element('div', { id: 'tip', role: 'tooltip', hidden: true });
  let shownFor = null;
  document.body.append(tip);

  function hide() {
    tip.hidden = true;
    shownFor?.removeAttribute('aria-describedby');
    shownFor = null;
  }

  function show(event) {
    const target = event.target.closest?.('[data-tip]');
    if (!target || target === shownFor) return;
    hide();
    shownFor = target;
    tip.textContent = target.dataset.tip;
    tip.hidden = false;
    target.setAttribute('aria-describedby', 'tip');
    const box = target.getBoundingClientRect();
    const room = root.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${window.scrollX + Math.max(8, Math.min(box.left, room))}px`;
    const above = box.top - tip.offsetHeight - 6;
    const isAbove = box.bottom + tip.offsetHeight + 6 > root.clientHeight && above > 0;
    tip.style.top = `${window.scrollY + (isAbove ? above : box.bottom + 6)}px`;
  }

  document.addEventListener('pointerover', show);
  document.addEventListener('focusin', show);
  document.addEventListener('focusout', hide);
  document.addEventListener('pointerout', (event) => {
    if (shownFor === event.target.closest?.('[data-tip]')
      && !shownFor?.contains(event.relatedTarget)) hide();
  });
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') hide();
  });
})();
