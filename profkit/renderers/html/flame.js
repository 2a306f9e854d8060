'use strict';
/** One flame graph: its nodes, their layout, and its drawing. */
profkit.Flame = class {
  static rowHeight = 20;

  constructor({ n, packed, sites, styles, unit, nLeftOut }) {
    const [up, site, own, total, count] = profkit.columns(profkit.unbase64(packed.text), packed);
    Object.assign(this, { n, sites, styles, nLeftOut, site, own, total, count });
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

  /** The callers of a node from the top, and the node itself. */
  path(node) {
    const found = [];
    for (let at = node; at >= 0; at = this.parent[at]) found.unshift(at);
    return found;
  }

  /** Zoom to a node, with its callers above it; -1 shows all. */
  show(node) {
    this.zoomed = node;
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

  /** Rows of all boxes that are at least a pixel wide. */
  nRows(width) {
    let rows = 1;
    for (let node = 0; node < this.n; node += 1) {
      if (this.share[node] * width >= 1) rows = Math.max(rows, this.depth[node] + 1);
    }
    return rows;
  }

  /** The node at a point of the drawing, or -1. */
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

  /** Total and own weight of a node, its share, and its kind. */
  about(node) {
    const share = profkit.formatShare(this.total[node] / this.weight);
    return `${this.format(this.total[node])}, ${share} of total; `
      + `self ${this.format(this.own[node])}; `
      + `${this.styles[this.sites.style[this.site[node]]].label}`;
  }

  /** Draw all boxes that are visible; `matches` are the sites that a search found, or null. */
  draw(canvas, width, { matches, selected }) {
    const { rowHeight } = profkit.Flame;
    const height = this.nRows(width) * rowHeight;
    const context = profkit.canvas.fitted(canvas, width, height);
    canvas.style.height = `${height}px`;
    const fills = this.styles.map(({ color }) => profkit.color(color));
    const textColors = fills.map(profkit.canvas.textColorOn);
    for (let node = 0; node < this.n; node += 1) {
      const wide = this.share[node] * width;
      if (this.left[node] < 0 || wide < 0.7) continue;
      const style = this.sites.style[this.site[node]];
      const isAbove = this.zoomed >= 0 && this.depth[node] < this.depth[this.zoomed];
      const isMatch = matches === null || matches.has(this.site[node]);
      const [x, y] = [this.left[node] * width, this.depth[node] * rowHeight];
      context.globalAlpha = isMatch ? (isAbove ? 0.55 : 1) : 0.18;
      context.fillStyle = fills[style];
      context.fillRect(x, y, Math.max(0.7, wide - 0.7), rowHeight - 1);
      context.globalAlpha = 1;
      if (wide > 26) this.label(context, node, x, y, wide, isMatch ? textColors[style] : null);
    }
    if (selected >= 0 && this.left[selected] >= 0) {
      context.strokeStyle = profkit.color('--fg');
      context.lineWidth = 2;
      context.strokeRect(this.left[selected] * width + 1, this.depth[selected] * rowHeight + 1,
        Math.max(3, this.share[selected] * width - 2), rowHeight - 3);
    }
  }

  label(context, node, x, y, wide, color) {
    context.fillStyle = color ?? profkit.color('--muted');
    profkit.canvas.write(context, this.text('short', node), x + 4,
      y + profkit.Flame.rowHeight / 2 - 0.5, wide - 8);
  }
};
