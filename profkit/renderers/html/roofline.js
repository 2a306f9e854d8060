'use strict';
/** One dot of the roofline has the focus; arrows, Home and End move it, in order of time. */
(() => {
  for (const chart of document.querySelectorAll('[data-roofline]')) {
    const dots = [...chart.querySelectorAll('.dot')];
    const places = {
      ArrowRight: (i) => i + 1, ArrowDown: (i) => i + 1, ArrowLeft: (i) => i - 1,
      ArrowUp: (i) => i - 1, Home: () => 0, End: () => dots.length - 1,
    };
    chart.addEventListener('keydown', (event) => {
      const from = dots.indexOf(document.activeElement);
      const next = dots[places[event.key]?.(from)];
      if (from < 0 || !places[event.key]) return;
      event.preventDefault();
      if (!next) return;
      dots[from].setAttribute('tabindex', '-1');
      next.setAttribute('tabindex', '0');
      next.focus();
    });
  }
})();
