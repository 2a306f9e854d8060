'use strict';
/** The flame graphs: which one is shown, which part of it, and what is chosen there. */
(() => {
  const { flames } = profkit.data('flames');
  const root = document.getElementById('flame-view');
  const canvas = root.querySelector('canvas');
  const tip = root.querySelector('.slice-tip');
  const crumbs = document.getElementById('flame-crumbs');
  const told = document.getElementById('flame-chosen');
  const looks = document.getElementById('flame-looks');
  const search = document.getElementById('flame-search');
  const found = document.getElementById('flame-found');
  const tables = document.querySelectorAll('.flame-table');
  const made = new Map();
  let flame = null;
  let chosen = -1;
  let marked = null;

  function draw() {
    flame.draw(canvas, Math.max(50, root.clientWidth), { marked, chosen });
    root.dataset.drawn = String(flame.n);
  }

  /** A button that shows a node alone. */
  function crumb(node) {
    const name = node < 0 ? 'all' : flame.text('short', node);
    const button = profkit.element('button', { type: 'button' }, name);
    if (node === flame.shown) button.setAttribute('aria-current', 'true');
    button.addEventListener('click', () => {
      show(node);
      crumbs.querySelector('[aria-current]').focus();
    });
    return button;
  }

  /** Show a node over the whole width; -1 shows all. */
  function show(node) {
    flame.show(node);
    chosen = node;
    crumbs.replaceChildren(...[-1, ...flame.path(node)].map(crumb));
    say();
    draw();
  }

  function choose(node) {
    chosen = node;
    say();
    draw();
  }

  /** Say what is chosen. */
  function say() {
    if (chosen < 0) {
      const rest = flame.nLeftOut
        ? `; ${profkit.formatCount(flame.nLeftOut)} of the lightest boxes are left out` : '';
      told.textContent = `${flame.format(flame.weight)} in all${rest}.`;
      return;
    }
    const place = flame.text('place', chosen);
    told.replaceChildren(profkit.element('b', {}, flame.text('name', chosen)),
      `${place ? ` ${place}` : ''}: ${flame.about(chosen)}.`);
  }

  function drawLooks() {
    looks.replaceChildren(...flame.samples.map(({ label, color }) => {
      const swatch = profkit.element('i', { class: 'look', style: `--color: var(${color})` });
      return profkit.element('li', {}, swatch, label);
    }));
  }

  /** Mark what has a text in its name or its line, and say how much that is, each once. */
  function mark() {
    const wanted = search.value.trim().toLowerCase();
    marked = null;
    found.textContent = '';
    if (wanted !== '') {
      const { name, place } = flame.sites;
      marked = new Set([...name.keys()].filter((site) => name[site].toLowerCase().includes(wanted)
        || place[site].toLowerCase().includes(wanted)));
      let sum = 0;
      const isWithin = new Uint8Array(flame.n);
      for (let node = 0; node < flame.n; node += 1) {
        const above = flame.parent[node];
        const isHit = marked.has(flame.site[node]);
        isWithin[node] = isHit || (above >= 0 && isWithin[above]) ? 1 : 0;
        if (isHit && !(above >= 0 && isWithin[above])) sum += flame.total[node];
      }
      const share = profkit.formatShare(sum / flame.weight);
      found.textContent = sum ? `${flame.format(sum)} within, ${share} of all` : 'nothing';
    }
    draw();
  }

  function pick(number) {
    if (!made.has(number)) made.set(number, new profkit.Flame(flames[number]));
    flame = made.get(number);
    for (const table of tables) table.hidden = Number(table.dataset.flame) !== number;
    tip.hidden = true;
    drawLooks();
    show(-1);
    mark();
  }

  function under(event) {
    const box = canvas.getBoundingClientRect();
    return flame.at(event.clientX - box.left, event.clientY - box.top, box.width);
  }

  canvas.addEventListener('pointermove', (event) => {
    const node = under(event);
    tip.hidden = node < 0;
    canvas.style.cursor = node < 0 ? 'default' : 'pointer';
    if (node < 0) return;
    const place = flame.text('place', node);
    tip.replaceChildren(profkit.element('b', {}, flame.text('name', node)),
      profkit.element('div', {}, place), profkit.element('div', {}, flame.about(node)));
    const box = root.getBoundingClientRect();
    const left = Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 4);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${event.clientY - box.top + 18}px`;
  });
  canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
  canvas.addEventListener('click', (event) => {
    const node = under(event);
    if (node >= 0) show(node === flame.shown ? flame.parent[node] : node);
  });

  /** The node beside a node, by so many places among those with the same caller. */
  function beside(node, by) {
    const above = flame.parent[node];
    const row = above < 0 ? flame.roots : flame.children[above];
    return row[row.indexOf(node) + by] ?? node;
  }

  const keys = {
    ArrowUp: () => choose(flame.parent[chosen] ?? -1),
    ArrowDown: () => choose((chosen < 0 ? flame.roots : flame.children[chosen])[0] ?? chosen),
    ArrowLeft: () => { if (chosen >= 0) choose(beside(chosen, -1)); },
    ArrowRight: () => { if (chosen >= 0) choose(beside(chosen, 1)); },
    Enter: () => show(chosen),
    Home: () => show(-1),
    Escape: () => { if (flame.shown >= 0) show(flame.parent[flame.shown]); },
  };
  root.addEventListener('keydown', (event) => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    act();
    event.preventDefault();
  });

  search.addEventListener('input', mark);
  document.getElementById('flame-choice').addEventListener('change', (event) => {
    pick(Number(event.target.value));
  });
  window.addEventListener('profkit:theme', draw);
  pick(0);
  new ResizeObserver(draw).observe(root);
})();
