'use strict';
/** One flame graph: its nodes, where each is, and its picture. */
profkit.Flame = class {
  static rowHeight = 20;

  constructor({ n, packed, sites, looks, unit, nLeftOut }) {
    const [up, site, own, total, count] = profkit.columns(profkit.unbase64(packed.text), packed);
    Object.assign(this, { n, sites, looks, nLeftOut, site, own, total, count });
    this.format = unit === 'ns' ? profkit.formatNs : profkit.formatBytes;
    this.parent = up.map((by, node) => (by === 0 ? -1 : node - by));
    this.children = Array.from({ length: n }, () => []);
    this.roots = [];
    this.parent.forEach((above, node) => {
      (above < 0 ? this.roots : this.children[above]).push(node);
    });
    const heaviestFirst = (a, b) => this.total[b] - this.total[a] || a - b;
    for (const some of [this.roots, ...this.children]) some.sort(heaviestFirst);
    this.weight = this.roots.reduce((sum, node) => sum + this.total[node], 0);
    this.show(-1);
  }

  /** Nodes from the top down to one, itself included. */
  path(node) {
    const found = [];
    for (let at = node; at >= 0; at = this.parent[at]) found.unshift(at);
    return found;
  }

  /** Lay a node out over the whole width, those above it over it; -1 shows all. */
  show(node) {
    this.shown = node;
    this.left = new Float64Array(this.n).fill(-1);
    this.share = new Float64Array(this.n);
    this.depth = new Int32Array(this.n);
    const above = this.path(node);
    above.forEach((each, depth) => {
      this.left[each] = 0;
      this.share[each] = 1;
      this.depth[each] = depth;
    });
    const whole = node < 0 ? this.weight : this.total[node];
    const stack = [];
    const place = (nodes, left, depth) => {
      let at = left;
      for (const each of nodes) {
        this.left[each] = at;
        this.share[each] = this.total[each] / whole;
        this.depth[each] = depth;
        at += this.share[each];
        stack.push(each);
      }
    };
    if (node < 0) place(this.roots, 0, 0);
    else stack.push(node);
    while (stack.length) {
      const each = stack.pop();
      place(this.children[each], this.left[each], this.depth[each] + 1);
    }
  }

  /** How many rows it needs where boxes narrower than a pixel are left out. */
  nRows(width) {
    let most = 1;
    for (let node = 0; node < this.n; node += 1) {
      if (this.share[node] * width >= 1) most = Math.max(most, this.depth[node] + 1);
    }
    return most;
  }

  /** The node at a place of the picture, or -1. */
  at(x, y, width) {
    const depth = Math.floor(y / profkit.Flame.rowHeight);
    for (let node = 0; node < this.n; node += 1) {
      if (this.depth[node] !== depth || this.left[node] < 0) continue;
      const left = this.left[node] * width;
      if (x >= left && x < left + this.share[node] * width) return node;
    }
    return -1;
  }

  text(column, node) {
    return this.sites[column][this.site[node]];
  }

  /** What a node is, in a sentence. */
  about(node) {
    const share = profkit.formatShare(this.total[node] / this.weight);
    return `${this.format(this.total[node])}, ${share} of all; `
      + `${this.format(this.own[node])} of it its own; `
      + `${this.samples[this.sites.look[this.site[node]]].label}`;
  }

  /** Draw all that can be seen. */
  draw(canvas, width, { marked, chosen }) {
    const { rowHeight } = profkit.Flame;
    const height = this.nRows(width) * rowHeight;
    const context = profkit.canvas.fitted(canvas, width, height);
    canvas.style.height = `${height}px`;
    const fills = this.samples.map(({ color }) => profkit.color(color));
    const inks = fills.map((fill) => (profkit.canvas.isLight(fill) ? '#000000' : '#ffffff'));
    for (let node = 0; node < this.n; node += 1) {
      const wide = this.share[node] * width;
      if (this.left[node] < 0 || wide < 0.7) continue;
      const look = this.sites.look[this.site[node]];
      const isAbove = this.shown >= 0 && this.depth[node] < this.depth[this.shown];
      const isMarked = marked === null || marked.has(this.site[node]);
      const [x, y] = [this.left[node] * width, this.depth[node] * rowHeight];
      context.globalAlpha = isMarked ? (isAbove ? 0.55 : 1) : 0.18;
      context.fillStyle = fills[look];
      context.fillRect(x, y, Math.max(0.7, wide - 0.7), rowHeight - 1);
      context.globalAlpha = 1;
      if (wide > 26) this.label(context, node, x, y, wide, isMarked ? inks[look] : null);
    }
    if (chosen >= 0 && this.left[chosen] >= 0) {
      context.strokeStyle = profkit.color('--fg');
      context.lineWidth = 2;
      context.strokeRect(this.left[chosen] * width + 1, this.depth[chosen] * rowHeight + 1,
        Math.max(3, this.share[chosen] * width - 2), rowHeight - 3);
    }
  }

  label(context, node, x, y, wide, ink) {
    context.fillStyle = ink ?? profkit.color('--muted');
    profkit.canvas.write(context, this.text('short', node), x + 4,
      y + profkit.Flame.rowHeight / 2 - 0.5, wide - 8);
  }
};
