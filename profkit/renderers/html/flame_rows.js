'use strict';
/** The nodes of a flame graph as rows that unfold: the heaviest first, each with its share. */
profkit.FlameRows = class {
  static most = 40;

  /** @param {HTMLDetailsElement} fold what holds the table; rows are drawn once it is open */
  constructor(fold) {
    this.fold = fold;
    this.body = fold.querySelector('tbody');
    this.drawn = null;
    fold.addEventListener('toggle', () => this.draw());
  }

  /** Show the tree that a flame graph shows now. */
  show(flame) {
    this.flame = flame;
    this.draw();
  }

  draw() {
    if (!this.fold.open || !this.flame || this.drawn === this.flame.tree) return;
    this.drawn = this.flame.tree;
    const { order, tree, weight } = this.flame;
    // Rows are the heaviest first in any order of the graph.
    this.children = tree.ordered(false).children;
    this.weight = weight;
    const roots = [...order.roots].sort((a, b) => tree.total[b] - tree.total[a]);
    this.body.replaceChildren(...this.rows(roots, 1));
    // A single thread or device says nothing: what it runs is the first that a reader looks for.
    if (roots.length === 1) this.body.querySelector('button')?.click();
  }

  /** Return the rows of siblings, and how many of them are left out. */
  rows(nodes, level) {
    const { most } = profkit.FlameRows;
    const rows = nodes.slice(0, most).map((node) => this.row(node, level));
    if (nodes.length <= most) return rows;
    const text = `${profkit.formatCount(nodes.length - most)} more`;
    const name = profkit.element('td', { colspan: '6', class: 'node muted' }, text);
    return [...rows, profkit.element('tr', { style: `--level: ${level}`, 'data-level': level }, name)];
  }

  row(node, level) {
    const { flame } = this;
    const { tree } = flame;
    const site = tree.site[node];
    const [name, place] = [flame.sites.short[site], flame.sites.place[site]];
    const share = this.weight > 0 ? tree.total[node] / this.weight : 0;

    const swatch = profkit.element('span', {
      class: 'swatch', 'aria-hidden': 'true',
      style: `--color: var(${flame.styles[flame.sites.style[site]].color})`,
    });
    const nodes = this.children[node];
    const label = nodes.length
      ? profkit.element('button', { type: 'button', 'aria-expanded': 'false' }, swatch, name)
      : profkit.element('span', { class: 'leaf' }, swatch, name);
    const bar = profkit.element('span', { style: `--share: ${share.toFixed(5)}` });

    const row = profkit.element('tr', { style: `--level: ${level}`, 'data-level': level },
      profkit.element('th', { scope: 'row', class: 'node' }, label,
        // A source line is named by its file and number.
        !name.endsWith(place.split('/').pop()) && profkit.element('code', {}, place)),
      profkit.element('td', { class: 'share-bar', 'aria-hidden': 'true' }, bar),
      profkit.element('td', { class: 'share' }, profkit.formatShare(share)),
      profkit.element('td', { class: 'ns' }, flame.format(tree.total[node])),
      profkit.element('td', { class: 'ns' }, flame.format(tree.own[node])),
      profkit.element('td', { class: 'count' }, profkit.formatCount(tree.count[node])));
    if (nodes.length) label.addEventListener('click', () => this.toggle(row, label, nodes, level));
    return row;
  }

  toggle(row, button, nodes, level) {
    const isOpen = button.getAttribute('aria-expanded') === 'true';
    button.setAttribute('aria-expanded', String(!isOpen));
    if (!isOpen) {
      row.after(...this.rows(nodes, level + 1));
      return;
    }
    while (row.nextSibling && Number(row.nextSibling.dataset.level) > level) {
      row.nextSibling.remove();
    }
  }
};
