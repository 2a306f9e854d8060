'use strict';
/** The page itself: its theme, its table of contents, hints, and buttons that lead elsewhere. */
(() => {
  const root = document.documentElement;
  const button = document.getElementById('theme');
  const preferred = window.matchMedia('(prefers-color-scheme: dark)');
  const key = 'profkit-theme';

  /** What was chosen before; a page without an origin of its own has no storage. */
  function remembered() {
    try {
      return localStorage.getItem(key);
    } catch {
      return null;
    }
  }

  function remember(theme) {
    try {
      localStorage.setItem(key, theme);
    } catch {
      // The choice holds until the page is closed.
    }
  }

  function show(theme) {
    const dark = theme === 'dark';
    root.dataset.theme = theme;
    button.setAttribute('aria-pressed', String(dark));
    window.dispatchEvent(new CustomEvent('profkit:theme', { detail: { dark } }));
  }

  show(remembered() ?? (preferred.matches ? 'dark' : 'light'));
  preferred.addEventListener('change', () => {
    if (remembered() === null) show(preferred.matches ? 'dark' : 'light');
  });
  button.addEventListener('click', () => {
    const theme = root.dataset.theme === 'dark' ? 'light' : 'dark';
    remember(theme);
    show(theme);
  });

  // A page of several reports shows this one in a frame, in its own colours.
  window.addEventListener('message', ({ source, data }) => {
    const isTheme = data?.theme === 'dark' || data?.theme === 'light';
    if (source === window.parent && window.parent !== window && isTheme) show(data.theme);
  });

  /** Mark the section that is being read in the table of contents. */
  function followReader() {
    const links = new Map();
    for (const link of document.querySelectorAll('.top nav a')) {
      links.set(link.getAttribute('href').slice(1), link);
    }
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        for (const link of links.values()) link.removeAttribute('aria-current');
        links.get(entry.target.id).setAttribute('aria-current', 'true');
      }
    }, { rootMargin: '-15% 0px -80% 0px' });
    for (const section of document.querySelectorAll('main > section')) seen.observe(section);
  }
  followReader();

  /** One hint at a time, for whatever has the pointer or the keyboard; Escape takes it away. */
  function hints() {
    const tip = profkit.element('div', { id: 'tip', role: 'tooltip', hidden: '' });
    document.body.append(tip);
    let shownFor = null;

    function hide() {
      tip.hidden = true;
      shownFor?.removeAttribute('aria-describedby');
      shownFor = null;
    }

    function reveal(event) {
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

    document.addEventListener('pointerover', reveal);
    document.addEventListener('focusin', reveal);
    document.addEventListener('focusout', hide);
    document.addEventListener('pointerout', (event) => {
      if (shownFor === event.target.closest?.('[data-tip]')
        && !shownFor?.contains(event.relatedTarget)) hide();
    });
    document.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') hide();
    });
  }
  hints();

  document.addEventListener('click', (event) => {
    const asked = event.target.closest?.('button[data-start-ns]');
    if (!asked) return;
    const { startNs, endNs, label } = asked.dataset;
    profkit.showRange(Number(startNs), Number(endNs), label);
  });

  /** A link to something within a closed finding opens it. */
  function openTarget() {
    if (location.hash.length < 2) return;
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const details = target?.closest('details');
    if (details) details.open = true;
  }
  window.addEventListener('hashchange', openTarget);
  openTarget();

  // Paper is white, and nothing on it can be opened.
  let beforePrint = '';
  window.addEventListener('beforeprint', () => {
    for (const details of document.querySelectorAll('main details')) details.open = true;
    beforePrint = root.dataset.theme;
    if (beforePrint !== 'light') show('light');
  });
  window.addEventListener('afterprint', () => {
    if (beforePrint !== 'light') show(beforePrint);
  });
})();
