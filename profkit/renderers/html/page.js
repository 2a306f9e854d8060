'use strict';
/** The page itself: theme, navigation, and buttons that lead to the timeline. */
(() => {
  const root = document.documentElement;
  const button = document.getElementById('theme');
  const preferred = window.matchMedia('(prefers-color-scheme: dark)');
  const key = 'profkit-theme';

  /** The theme that was chosen before; a sandboxed page has no storage. */
  function stored() {
    try {
      return localStorage.getItem(key);
    } catch {
      return null;
    }
  }

  function store(theme) {
    try {
      localStorage.setItem(key, theme);
    } catch {
      // The choice lasts until the page is closed.
    }
  }

  function show(theme) {
    const dark = theme === 'dark';
    root.dataset.theme = theme;
    button.setAttribute('aria-pressed', String(dark));
    window.dispatchEvent(new CustomEvent('profkit:theme', { detail: { dark } }));
  }

  show(stored() ?? (preferred.matches ? 'dark' : 'light'));
  preferred.addEventListener('change', () => {
    if (stored() === null) show(preferred.matches ? 'dark' : 'light');
  });
  button.addEventListener('click', () => {
    const theme = root.dataset.theme === 'dark' ? 'light' : 'dark';
    store(theme);
    show(theme);
  });

  // A page of several reports and TensorBoard's tab show this page in a frame. They set its theme;
  // the tab also has the navigation: it selects a section, and is notified of the visible one.
  window.addEventListener('message', ({ source, data }) => {
    if (source !== window.parent || window.parent === window) return;
    if (data?.theme === 'dark' || data?.theme === 'light') show(data.theme);
    if (typeof data?.section !== 'string') return;
    root.dataset.embedded = '';
    const section = document.getElementById(data.section);
    // Above the first section is the headline.
    if (section?.matches('section:first-of-type')) window.scrollTo(0, 0);
    else if (section) {
      profkit.reveal(section);
      section.scrollIntoView();
    }
  });

  /** Mark the visible section in the navigation. */
  const links = new Map([...document.querySelectorAll('.top nav a')]
    .map((link) => [link.getAttribute('href').slice(1), link]));
  const visible = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute('aria-current');
      links.get(target.id).setAttribute('aria-current', 'true');
      if ('embedded' in root.dataset) window.parent.postMessage({ section: target.id }, '*');
    }
  // In a sandboxed frame margins apply only with an explicit root.
  }, { root: document, rootMargin: '-15% 0px -80% 0px' });
  for (const section of document.querySelectorAll('main > section')) visible.observe(section);

  document.addEventListener('click', (event) => {
    const target = event.target.closest?.('button[data-start-ns]');
    if (!target) return;
    const { startNs, endNs, label } = target.dataset;
    profkit.showRange(Number(startNs), Number(endNs), label, { from: target });
  });

  /** Open what an address leads to. A second click on a link does not change the address. */
  function openTarget(hash) {
    const target = hash.length > 1 && document.getElementById(hash.slice(1));
    if (target) profkit.reveal(target);
  }
  window.addEventListener('hashchange', () => openTarget(location.hash));
  document.addEventListener('click', ({ target }) => {
    const link = target.closest?.('a[href^="#"]');
    if (link) openTarget(link.getAttribute('href'));
  });
  openTarget(location.hash);

  // Printed pages are light, with all details open.
  let themeBeforePrint = '';
  window.addEventListener('beforeprint', () => {
    for (const details of document.querySelectorAll('main details')) details.open = true;
    themeBeforePrint = root.dataset.theme;
    if (themeBeforePrint !== 'light') show('light');
  });
  window.addEventListener('afterprint', () => {
    if (themeBeforePrint !== 'light') show(themeBeforePrint);
  });
})();
