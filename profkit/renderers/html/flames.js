'use strict';
/** The flame graphs: choice of a graph and of what it shows, zoom, callers, selection, search. */
(async () => {
  const { flames } = await profkit.storedData('flames');
  const part = (name) => document.getElementById(`flame-${name}`);
  const root = part('view');
  const canvas = root.querySelector('canvas');
  const tip = root.querySelector('.slice-tip');
  const [crumbs, details, legend, search, found] = ['crumbs', 'selected', 'styles', 'search', 'found']
    .map(part);
  const [threads, idle, library, order, inverted] = ['threads', 'idle', 'library', 'order', 'inverted']
    .map(part);
  const [callers, side, limit] = ['callers', 'side', 'span'].map(part);
  const tables = document.querySelectorAll('.flame-table');
  // A comparison has no rows.
  const rows = part('rows') && new profkit.FlameRows(part('rows'));
  const graphs = new Map();
  let flame = null;
  let selected = null;
  let matches = null;
  let span = null;

  function draw() {
    if (!flame) return;
    flame.draw(canvas, Math.max(50, canvas.clientWidth), { matches, selected });
    root.dataset.drawn = String(flame.tree.n);
  }

  /** Return a button that zooms to a node. */
  function crumb(node) {
    const name = node < 0 ? 'all' : flame.sites.short[flame.tree.site[node]];
    const button = profkit.element('button', { type: 'button' }, name);
    if (node === flame.zoomed && flame.chosen === null) button.setAttribute('aria-current', 'true');
    button.addEventListener('click', () => {
      show(node);
      crumbs.querySelector('[aria-current]').focus();
    });
    return button;
  }

  /** Zoom to a node; -1 shows all. */
  function show(node) {
    flame.show(node);
    crumbs.replaceChildren(...[-1, ...flame.path(node)].map(crumb));
    select(node < 0 ? null : flame.boxOf(node));
  }

  /** Show the callers of a site above it, and what it calls below it. */
  function showCallers(site) {
    flame.showCallers(site);
    const name = profkit.element('button', { type: 'button', 'aria-current': 'true' },
      `callers of ${flame.sites.short[site]}`);
    crumbs.replaceChildren(crumb(-1), name);
    select(flame.boxes.find((box) => box.site === site && box.tree.parent[box.node] < 0));
  }

  function select(box) {
    selected = box ?? null;
    callers.disabled = !selected;
    describe();
    draw();
  }

  /** Describe the selected box. */
  function describe() {
    if (!selected) {
      const remark = flame.nLeftOut
        ? `; ${profkit.formatCount(flame.nLeftOut)} smallest boxes are left out` : '';
      details.textContent = `${flame.format(flame.weight)} total${remark}.`;
      return;
    }

    const place = flame.text('place', selected);
    details.replaceChildren(profkit.element('b', {}, flame.text('name', selected)),
      `${place ? ` ${place}` : ''}: ${flame.about(selected)}.`);
  }

  /** Draw the colours that occur, the ones of the heaviest boxes first. */
  function drawLegend() {
    const used = new Set(Array.from(flame.tree.site, (site) => flame.sites.style[site]));
    profkit.showColors(legend, flame.isDifference
      ? [['more than before', '--series-4'], ['less than before', '--series-1'],
        ['no change', '--line']]
      : new Map(flame.styles.filter((_, style) => used.has(style))
        .map(({ label, color }) => [label, color])));
  }

  /** Highlight nodes whose name or location contains a text, and sum them, nested ones once. */
  function find() {
    const text = search.value.trim().toLowerCase();
    matches = null;
    found.textContent = '';
    if (text !== '') {
      const { name, place } = flame.sites;
      matches = new Set([...name.keys()].filter((site) => name[site].toLowerCase().includes(text)
        || place[site].toLowerCase().includes(text)));
      const sum = flame.sum(matches);
      const share = profkit.formatShare(sum / flame.weight);
      found.textContent = sum ? `${flame.format(sum)}, ${share} of total` : 'no match';
    }
    draw();
  }

  /** Offer what the graph has: threads or devices, idle threads, library frames, an order. */
  function offer() {
    const { roots, sites, whole } = flame;
    threads.replaceChildren(...[-1, ...roots].map((node) => profkit.element('option',
      { value: String(node) }, node < 0 ? 'all' : sites.name[whole.site[node]])));

    const nIdle = flame.idle.size;
    for (const [control, isOffered] of [[threads, roots.length > 1],
      [idle, nIdle > 0 && nIdle < roots.length], [library, flame.isFoldable],
      [order, flame.isTimed], [inverted, !flame.isDifference]]) {
      control.closest('label').hidden = !isOffered;
    }
    idle.nextSibling.textContent = ` ${profkit.formatCount(nIdle)} idle `
      + `thread${nIdle === 1 ? '' : 's'}`;
  }

  /** Draw the graph with what is chosen. */
  function apply() {
    flame.choose({
      root: Number(threads.value), withIdle: idle.checked, isUnfolded: library.checked,
      byTime: order.value === 'time', isInverted: inverted.checked && !flame.isDifference,
      side: side?.value ?? 'total', span,
    });
    library.nextSibling.textContent = ` library frames${
      flame.nHidden ? ` (${profkit.formatCount(flame.nHidden)} hidden)` : ''}`;
    if (limit) {
      limit.hidden = !flame.isOfSpan;
      limit.firstChild.textContent = flame.isOfSpan ? span.text : '';
    }
    showTable();
    rows?.show(flame);
    tip.hidden = true;
    drawLegend();
    show(-1);
    find();
  }

  /** Show the table of the graph; it is of the whole graph, and hidden for a part of it. */
  function showTable() {
    for (const table of tables) {
      table.hidden = table.dataset.flame !== root.dataset.chosen || flame?.isOfSpan;
    }
  }

  async function decoded(data) {
    const tree = await profkit.FlameTree.decoded(data);
    const lives = {};
    for (const [device, packed] of Object.entries(data.lives)) {
      lives[device] = await profkit.lives(packed, tree.n);
    }
    return new profkit.Flame(data, tree, lives);
  }

  async function choose(number) {
    if (!graphs.has(number)) graphs.set(number, decoded(flames[number]));
    root.dataset.chosen = String(number);
    showTable();

    // The reader may choose another graph while this one is decoded.
    try {
      const chosen = await graphs.get(number);
      if (root.dataset.chosen !== String(number)) return;
      flame = chosen;
    } catch {
      details.textContent = 'This browser cannot decompress the flame graph.';
      return;
    }

    offer();
    apply();
  }

  function boxAt(event) {
    const box = canvas.getBoundingClientRect();
    return flame?.at(event.clientX - box.left, event.clientY - box.top, box.width);
  }

  canvas.addEventListener('pointermove', (event) => {
    const box = boxAt(event);
    tip.hidden = !box;
    canvas.style.cursor = box ? 'pointer' : 'default';
    if (!box) return;
    tip.replaceChildren(profkit.element('b', {}, flame.text('name', box)),
      profkit.element('div', {}, flame.text('place', box)),
      profkit.element('div', {}, flame.about(box)));
    profkit.canvas.showTip(tip, root.getBoundingClientRect(), event);
  });
  canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
  canvas.addEventListener('click', (event) => {
    const box = boxAt(event);
    if (!box) return;
    if (flame.chosen !== null) showCallers(box.site);
    else show(box.node === flame.zoomed ? flame.tree.parent[box.node] : box.node);
  });

  const keys = {
    ArrowUp: () => select(flame.boxNear(selected, 0, selected ? -1 : 0)),
    ArrowDown: () => select(flame.boxNear(selected, 0, 1) ?? selected),
    ArrowLeft: () => { if (selected) select(flame.boxNear(selected, -1, 0) ?? selected); },
    ArrowRight: () => { if (selected) select(flame.boxNear(selected, 1, 0) ?? selected); },
    Enter: () => {
      if (selected && flame.chosen !== null) showCallers(selected.site);
      else show(selected ? selected.node : -1);
    },
    c: () => { if (selected) showCallers(selected.site); },
    Home: () => show(-1),
    Escape: () => {
      if (flame.chosen !== null) show(flame.zoomed);
      else if (flame.zoomed >= 0) show(flame.tree.parent[flame.zoomed]);
    },
  };
  root.addEventListener('keydown', (event) => {
    const handle = keys[event.key];
    if (!handle || !flame || event.ctrlKey || event.metaKey || event.altKey) return;
    handle();
    event.preventDefault();
  });

  profkit.keys.add({ root: root.closest('section'), title: 'Flame graphs', search, keys: [
    ['← → ↑ ↓', 'select the box beside, above or below'],
    ['Enter', 'zoom to the selected box'],
    ['C', 'show who calls the selected function, and what it calls'],
    ['Esc', 'zoom out'],
    ['Home', 'show all'],
    ['/', 'search'],
  ] });
  search.addEventListener('input', () => { if (flame) find(); });
  callers.addEventListener('click', () => showCallers(selected.site));
  for (const control of [threads, idle, library, order, inverted, side]) {
    control?.addEventListener('change', apply);
  }
  part('choice').addEventListener('change', (event) => {
    choose(Number(event.target.value));
  });
  window.addEventListener('profkit:span', ({ detail }) => {
    span = detail;
    if (flame) apply();
  });
  limit?.querySelector('button').addEventListener('click', () => profkit.showSpan(null));
  window.addEventListener('profkit:theme', draw);
  for (const [event, printed] of [['beforeprint', ''], ['afterprint', null]]) {
    window.addEventListener(event, () => {
      if (printed === null) delete root.dataset.printed;
      else root.dataset.printed = printed;
      draw();
    });
  }
  choose(0);
  new ResizeObserver(draw).observe(root);
})();
