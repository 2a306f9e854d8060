'use strict';
/**
 * Keys of the page: `?` shows all, `/` goes to a search. Each drawing adds its own.
 */
profkit.keys = (() => {
  const drawings = [];
  let dialog = null;

  /** Whether a key belongs to what the user writes or chooses. */
  const isTyping = ({ target }) => target.closest?.('input, select, textarea, dialog') !== null;

  /** The drawing with the focus, else the one under the pointer, else the first. */
  function current() {
    return drawings.find(({ root }) => root.contains(document.activeElement))
      ?? drawings.find(({ root }) => root.matches(':hover')) ?? drawings[0];
  }

  function showAll() {
    if (!dialog) {
      const close = profkit.element('button', { type: 'button' }, 'Close');
      dialog = profkit.element('dialog', { class: 'all-keys', 'aria-label': 'Keys' },
        drawings.flatMap(({ title, keys }) => [
          profkit.element('h3', {}, title),
          profkit.element('dl', {}, keys.flatMap(([names, does]) => [
            profkit.element('dt', {}, names.split(' ').flatMap((name, i) => [
              i ? ' ' : '', profkit.element('kbd', {}, name)])),
            profkit.element('dd', {}, does),
          ])),
        ]), close);
      close.addEventListener('click', () => dialog.close());
      dialog.addEventListener('click', ({ target }) => { if (target === dialog) dialog.close(); });
      document.body.append(dialog);
    }
    if (!dialog.open) dialog.showModal();
  }

  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event)) return;
    if (event.key === '?') showAll();
    else if (event.key === '/') {
      const { search } = current();
      profkit.reveal(search);
      search.scrollIntoView({ block: 'nearest' });
      search.select();
    } else return;
    event.preventDefault();
  });

  /** Add a drawing: its element, title, search field, and pairs of keys and what they do. */
  function add(drawing) {
    drawings.push(drawing);
    for (const button of drawing.root.querySelectorAll('[data-keys]')) {
      button.addEventListener('click', showAll);
    }
  }

  return { add, isTyping };
})();
