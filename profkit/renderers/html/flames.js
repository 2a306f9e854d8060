'use strict';
/** The flame graphs: choice of a graph, zoom, selection and search. */
(() => {
  const { flames } = profkit.data('flames');
  const root = document.getElementById('flame-view');
  const canvas = root.querySelector('canvas');
  const tip = root.querySelector('.slice-tip');
  const crumbs = document.getElementById('flame-crumbs');
  const details = document.getElementById('flame-selected');
  const legend = document.getElementById('flame-styles');
  const search = document.getElementById('flame-search');
  const found = document.getElementById('flame-found');
  const tables = document.querySelectorAll('.flame-table');
  const graphs = new Map();
  let flame = null;
  let selected = -1;
  let matches = null;

  function draw() {
    flame.draw(canvas, Math.max(50, root.clientWidth), { matches, selected });
    root.dataset.drawn = String(flame.n);
  }

  /** A button that zooms to a node. */
  function crumb(node) {
    const name = node < 0 ? 'all' : flame.text('short', node);
    const button = profkit.element('button', { type: 'button' }, name);
    if (node === flame.zoomed) button.setAttribute('aria-current', 'true');
    button.addEventListener('click', () => {
      show(node);
      crumbs.querySelector('[aria-current]').focus();
    });
    return button;
  }

  /** Zoom to a node; -1 shows all. */
  function show(node) {
    flame.show(node);
    selected = node;
    crumbs.replaceChildren(...[-1, ...flame.path(node)].map(crumb));
    describe();
    draw();
  }

  function select(node) {
    selected = node;
    describe();
    draw();
  }

  /** Describe the selected node. */
  function describe() {
    if (selected < 0) {
      const rest = flame.nLeftOut
        ? `; ${profkit.formatCount(flame.nLeftOut)} smallest boxes are left out` : '';
      details.textContent = `${flame.format(flame.weight)} total${rest}.`;
      return;
    }
    const place = flame.text('place', selected);
    details.replaceChildren(profkit.element('b', {}, flame.text('name', selected)),
      `${place ? ` ${place}` : ''}: ${flame.about(selected)}.`);
  }

  function drawLegend() {
    legend.replaceChildren(...flame.styles.map(({ label, color }) => {
      const swatch = profkit.element('i', { class: 'swatch', style: `--color: var(${color})` });
      return profkit.element('li', {}, swatch, label);
    }));
  }

  /** Highlight nodes whose name or location contains a text, and sum them without double counting. */
  function find() {
    const text = search.value.trim().toLowerCase();
    matches = null;
    found.textContent = '';
    if (text !== '') {
      const { name, place } = flame.sites;
      matches = new Set([...name.keys()].filter((site) => name[site].toLowerCase().includes(text)
        || place[site].toLowerCase().includes(text)));
      let sum = 0;
      const isWithin = new Uint8Array(flame.n);
      for (let node = 0; node < flame.n; node += 1) {
        const above = flame.parent[node];
        const isMatch = matches.has(flame.site[node]);
        isWithin[node] = isMatch || (above >= 0 && isWithin[above]) ? 1 : 0;
        if (isMatch && !(above >= 0 && isWithin[above])) sum += flame.total[node];
      }
      const share = profkit.formatShare(sum / flame.weight);
      found.textContent = sum ? `${flame.format(sum)}, ${share} of total` : 'no match';
    }
    draw();
  }

  function choose(number) {
    if (!graphs.has(number)) graphs.set(number, new profkit.Flame(flames[number]));
    flame = graphs.get(number);
    for (const table of tables) table.hidden = Number(table.dataset.flame) !== number;
    tip.hidden = true;
    drawLegend();
    show(-1);
    find();
  }

  function nodeAt(event) {
    const box = canvas.getBoundingClientRect();
    return flame.at(event.clientX - box.left, event.clientY - box.top, box.width);
  }

  canvas.addEventListener('pointermove', (event) => {
    const node = nodeAt(event);
    tip.hidden = node < 0;
    canvas.style.cursor = node < 0 ? 'default' : 'pointer';
    if (node < 0) return;
    const place = flame.text('place', node);
    tip.replaceChildren(profkit.element('b', {}, flame.text('name', node)),
      profkit.element('div', {}, place), profkit.element('div', {}, flame.about(node)));
    profkit.canvas.showTip(tip, root.getBoundingClientRect(), event);
  });
  canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
  canvas.addEventListener('click', (event) => {
    const node = nodeAt(event);
    if (node >= 0) show(node === flame.zoomed ? flame.parent[node] : node);
  });

  /** The sibling of a node at a distance, or the node itself. */
  function sibling(node, by) {
    const above = flame.parent[node];
    const row = above < 0 ? flame.roots : flame.children[above];
    return row[row.indexOf(node) + by] ?? node;
  }

  const keys = {
    ArrowUp: () => select(flame.parent[selected] ?? -1),
    ArrowDown: () => select((selected < 0 ? flame.roots : flame.children[selected])[0] ?? selected),
    ArrowLeft: () => { if (selected >= 0) select(sibling(selected, -1)); },
    ArrowRight: () => { if (selected >= 0) select(sibling(selected, 1)); },
    Enter: () => show(selected),
    Home: () => show(-1),
    Escape: () => { if (flame.zoomed >= 0) show(flame.parent[flame.zoomed]); },
  };
  root.addEventListener('keydown', (event) => {
    const handle = keys[event.key];
    if (!handle || event.ctrlKey || event.metaKey || event.altKey) return;
    handle();
    event.preventDefault();
  });

  profkit.keys.add({ root: root.closest('section'), title: 'Flame graphs', search, keys: [
    ['← → ↑ ↓', 'select the box beside, above or below'],
  ] });
  search.addEventListener('input', find);
  document.getElementById('flame-choice').addEventListener('change', (event) => {
    choose(Number(event.target.value));
  });
  window.addEventListener('profkit:theme', draw);
  choose(0);
  new ResizeObserver(draw).observe(root);
})();
