'use strict';
/** One flame graph: the boxes of its nodes, their layout, and its drawing. */
profkit.Flame = class {
  static rowHeight = 20;

  /**
   * @param data what flames.py writes of a graph
   * @param {profkit.FlameTree} whole its tree
   * @param {object} lives by device the sums of blocks that `profkit.lives` returns
   */
  constructor({ sites, styles, unit, nLeftOut, idle }, whole, lives) {
    Object.assign(this, { sites, styles, nLeftOut, whole, lives, idle: new Set(idle) });
    this.format = unit === 'ns' ? profkit.formatNs : profkit.formatBytes;
    this.roots = whole.parent.flatMap((above, node) => (above < 0 ? [node] : []));
    this.isFoldable = styles.some(({ isFolded }) => isFolded);
    this.isTimed = whole.first.some((first) => first > 0);
    this.isDifference = whole.before !== whole.total;
  }

  /**
   * Show one root or all (-1), with idle threads, with library frames, in the order of time, or the
   * callers of everything; `side`
   * is the column of the widths: `total`, or `before` in the first of two recordings; `span` is
   * null, or the only moments at some of which blocks were live.
   */
  choose({ side, root, withIdle, isUnfolded, byTime, isInverted, span }) {
    this.side = side;
    this.byTime = byTime;
    const sums = span && this.lives[span.device]?.(span.from, span.to);
    const whole = sums ? this.whole.weighted(sums.bytes, sums.n) : this.whole;
    this.isOfSpan = Boolean(sums);

    // A recording of idle threads alone shows them all.
    const isAlone = this.roots.every((node) => this.idle.has(node));
    this.tree = whole.filtered(
      (node) => (root >= 0 ? node === root : withIdle || isAlone || !this.idle.has(node)),
      (site) => !isUnfolded && this.styles[this.sites.style[site]].isFolded);

    this.nHidden = this.tree.hidden.reduce((sum, n) => sum + n, 0);
    if (isInverted) this.tree = this.tree.inverted();

    this.order = this.tree.ordered(byTime, this.tree[side]);
    this.weight = this.order.roots.reduce((sum, node) => sum + this.tree[side][node], 0);
    this.mostChanged = this.tree.total.reduce(
      (most, total, node) => Math.max(most, Math.abs(total - this.tree.before[node])), 1);
    this.show(-1);
  }

  /** Return the callers of a node from the top, and the node itself. */
  path(node) {
    const nodes = [];
    for (let at = node; at >= 0; at = this.tree.parent[at]) nodes.unshift(at);
    return nodes;
  }

  box(tree, node, left, share, row) {
    const box = { tree, node, left, share, row, site: tree.site[node] };
    this.boxes.push(box);
    return box;
  }

  /** Place nodes next to each other, and their descendants below them, or above them. */
  place(tree, { children }, nodes, whole, row, down = 1) {
    const waiting = [[nodes, 0, row]];
    while (waiting.length) {
      const [siblings, from, at] = waiting.pop();
      let left = from;
      for (const node of siblings) {
        const share = whole > 0 ? tree[this.side][node] / whole : 0;
        this.box(tree, node, left, share, at);
        waiting.push([children[node], left, at + down]);
        left += share;
      }
    }
  }

  /** Zoom to a node, with its callers above it; -1 shows all. */
  show(node) {
    this.zoomed = node;
    this.chosen = null;
    this.boxes = [];
    const { tree, order } = this;
    if (node < 0) {
      this.place(tree, order, order.roots, this.weight, 0);
      return;
    }

    const path = this.path(node);
    path.slice(0, -1).forEach((caller, row) => {
      this.box(tree, caller, 0, 1, row).isAbove = true;
    });
    this.place(tree, order, [node], tree[this.side][node], path.length - 1);
  }

  /** Show who calls a function, above it, and what it calls, below it. */
  showCallers(site) {
    const [callers, callees] = [this.tree.callersOf(site), this.tree.calleesOf(site)];
    this.chosen = site;
    this.boxes = [];

    const whole = callees[this.side][0];
    this.place(callees, callees.ordered(this.byTime, callees[this.side]), [0], whole, 0);
    const order = callers.ordered(this.byTime, callers[this.side]);
    this.place(callers, order, [0], whole, 0, -1);
    const top = this.boxes.reduce((least, { row }) => Math.min(least, row), 0);

    // The function itself is in both trees.
    this.boxes = this.boxes.filter(({ tree, row }) => tree === callees || row < 0);
    for (const box of this.boxes) box.row -= top;
  }

  /** Return a function from a change and the largest one to a colour: more, less, or neither. */
  static changeColors() {
    const [none, more, less] = ['--line', '--series-4', '--series-1'].map(profkit.color);
    // The root makes small changes visible.
    return (change, most) => profkit.canvas.mixed(none, change > 0 ? more : less,
      Math.sqrt(Math.abs(change) / most));
  }

  /** Return the number of rows with boxes that are at least a pixel wide. */
  nRows(width) {
    return this.boxes.reduce((rows, { share, row }) => (
      share * width >= 1 ? Math.max(rows, row + 1) : rows), 1);
  }

  /** Return the box at a point of the drawing, or undefined. */
  at(x, y, width) {
    const row = Math.floor(y / profkit.Flame.rowHeight);
    return this.boxes.find((box) => box.row === row
      && x >= box.left * width && x < (box.left + box.share) * width);
  }

  /** Return the box of a node of the shown tree. */
  boxOf(node) {
    return this.boxes.find((box) => box.node === node && box.tree === this.tree);
  }

  /** Return the box next to another one in its row, or the nearest one above or below it. */
  boxNear(box, across, down) {
    const isWide = ({ share }) => share > 0;
    if (!box) return this.boxes.find((first) => first.row === 0 && isWide(first));
    const row = this.boxes.filter((other) => other.row === box.row + down && isWide(other));
    if (across) {
      row.sort((a, b) => a.left - b.left);
      return row[row.indexOf(box) + across];
    }

    // The box with the largest overlap: of equal ones the one that begins nearest to the middle.
    const middle = box.left + box.share / 2;
    const overlap = ({ left, share }) => Math.min(left + share, box.left + box.share)
      - Math.max(left, box.left);
    const overlapping = row.filter((candidate) => overlap(candidate) > 0);
    overlapping.sort((a, b) => overlap(b) - overlap(a)
      || Math.abs(a.left - middle) - Math.abs(b.left - middle));
    return overlapping[0];
  }

  text(column, { site }) {
    return this.sites[column][site];
  }

  static hiddenText(n) {
    return `${profkit.formatCount(n)} library frame${n === 1 ? '' : 's'} hidden`;
  }

  /** Return total and own weight of a box, its share, and its kind. */
  about({ tree, node, site }) {
    if (this.isDifference) {
      const [before, after] = [tree.before[node], tree.total[node]];
      const sign = after < before ? '−' : '+';
      return `${this.format(before)} before, ${this.format(after)} after: `
        + `${sign}${this.format(Math.abs(after - before))}`;
    }

    const share = profkit.formatShare(tree.total[node] / this.weight);
    return `${this.format(tree.total[node])}, ${share} of total; `
      + `self ${this.format(tree.own[node])}; `
      + `${this.styles[this.sites.style[site]].label}`
      + `${tree.hidden[node] ? `; ${profkit.Flame.hiddenText(tree.hidden[node])} below it` : ''}`;
  }

  /** Sum the boxes of some sites; of nested ones only the outermost counts. */
  sum(sites) {
    const { tree } = this;
    const isWithin = [];
    let sum = 0;
    for (let node = 0; node < tree.n; node += 1) {
      const above = tree.parent[node];
      const inside = above >= 0 && isWithin[above];
      const isMatch = sites.has(tree.site[node]);
      if (isMatch && !inside) sum += tree.total[node];
      isWithin[node] = inside || isMatch;
    }
    return sum;
  }

  /** Draw all boxes that are visible; `matches` are the sites that a search found, or null. */
  draw(canvas, width, { matches, selected }) {
    const { rowHeight } = profkit.Flame;
    const height = this.nRows(width) * rowHeight;
    const context = profkit.canvas.fitted(canvas, width, height);
    canvas.style.height = `${height}px`;
    const fills = this.styles.map(({ color }) => profkit.color(color));
    const textColors = fills.map(profkit.canvas.textColorOn);
    const muted = profkit.color('--muted');
    const changes = this.isDifference && profkit.Flame.changeColors();

    for (const box of this.boxes) {
      const wide = box.share * width;
      if (wide < 0.7) continue;

      const style = this.sites.style[box.site];
      const isMatch = matches === null || matches.has(box.site);
      const [x, y] = [box.left * width, box.row * rowHeight];
      context.globalAlpha = isMatch ? (box.isAbove ? 0.55 : 1) : 0.18;
      const change = changes && changes(box.tree.total[box.node] - box.tree.before[box.node],
        this.mostChanged);
      context.fillStyle = change || fills[style];
      context.fillRect(x, y, Math.max(0.7, wide - 0.7), rowHeight - 1);
      context.globalAlpha = 1;

      if (wide > 26) {
        context.fillStyle = !isMatch ? muted
          : (change ? profkit.canvas.textColorOn(change) : textColors[style]);
        profkit.canvas.write(context, this.text('short', box), x + 4, y + rowHeight / 2 - 0.5,
          wide - 8);
      }

      if (box === selected || (this.chosen === box.site && box.tree !== this.tree
        && box.tree.parent[box.node] < 0)) {
        context.strokeStyle = profkit.color('--fg');
        context.lineWidth = 2;
        context.strokeRect(x + 1, y + 1, Math.max(3, wide - 2), rowHeight - 3);
      }
    }
  }
};
