'use strict';
/**
 * A weighted call tree in columns: `site`, `parent` (-1 for roots), `own`, `total`, `count`,
 * `first`, the order in which the nodes began, `before`, the total in the first of two recordings,
 * and `hidden`, folded frames that a node stands for. Parents precede their children.
 */
profkit.FlameTree = class FlameTree {
  constructor() {
    Object.assign(this, {
      site: [], parent: [], own: [], total: [], count: [], first: [], before: [], hidden: [],
    });
    this.numbers = new Map();
  }

  get n() {
    return this.site.length;
  }

  /** Return the tree of a flame graph of the page. */
  static async decoded({ packed }) {
    const [up, site, own, total, count, first, before = total] = await profkit.unpacked(packed);
    const parent = Array.from(up, (distance, node) => (distance === 0 ? -1 : node - distance));
    return Object.assign(new FlameTree(), { site, parent, own, total, count, first, before });
  }

  /** Return a tree of the same nodes with other weights. */
  weighted(own, count) {
    const { site, parent, first } = this;
    const total = Array.from(own);
    // Parents precede their children: from the end, each total is complete when it is added.
    for (let node = this.n - 1; node >= 0; node -= 1) {
      if (parent[node] >= 0) total[parent[node]] += total[node];
    }
    return Object.assign(new FlameTree(), { site, parent, first, own, count, total, before: total });
  }

  /** Return the node of a site below another one, created where it is new. */
  node(parent, site) {
    const key = `${parent}/${site}`;
    if (!this.numbers.has(key)) {
      this.numbers.set(key, this.n);
      this.site.push(site);
      this.parent.push(parent);
      for (const column of [this.own, this.total, this.count, this.before, this.hidden]) {
        column.push(0);
      }
      this.first.push(Infinity);
    }
    return this.numbers.get(key);
  }

  /** Add weights of a node of another tree. */
  add(node, { own = 0, total = 0, count = 0, first = Infinity, before = 0 }) {
    this.before[node] += before;
    this.own[node] += own;
    this.total[node] += total;
    this.count[node] += count;
    this.first[node] = Math.min(this.first[node], first);
  }

  weights(node) {
    return {
      own: this.own[node], total: this.total[node], count: this.count[node],
      first: this.first[node], before: this.before[node],
    };
  }

  /**
   * Return the tree of some roots, without nodes that weigh nothing and without folded nodes, whose
   * own weights and callees go to their callers.
   */
  filtered(isShown, isFolded) {
    const tree = new FlameTree();
    const target = [];
    for (let node = 0; node < this.n; node += 1) {
      const above = this.parent[node];
      if (above < 0 ? !isShown(node) : target[above] === undefined) continue;
      if (!this.total[node] && !this.before[node]) continue;
      if (above >= 0 && isFolded(this.site[node])) {
        target[node] = target[above];
        tree.add(target[node], { own: this.own[node] });
        tree.hidden[target[node]] += 1;
      } else {
        target[node] = tree.node(above < 0 ? -1 : target[above], this.site[node]);
        tree.add(target[node], this.weights(node));
      }
    }
    return tree;
  }

  /**
   * Return the callers of everything: what has a weight of its own is a root, and below it are its
   * callers. The roots of this tree, which are threads or devices, call everything and are left out.
   */
  inverted() {
    const tree = new FlameTree();
    for (let node = 0; node < this.n; node += 1) {
      if (!this.own[node]) continue;
      const weights = { total: this.own[node], count: this.count[node], first: this.first[node] };
      let at = tree.node(-1, this.site[node]);
      tree.add(at, { ...weights, own: this.own[node] });
      for (let above = this.parent[node]; this.parent[above] >= 0; above = this.parent[above]) {
        at = tree.node(at, this.site[above]);
        tree.add(at, weights);
      }
    }
    return tree;
  }

  /** Return the outermost nodes of a site: a recursive call is a part of the first one. */
  outermost(site) {
    const isWithin = [];
    const nodes = [];
    for (let node = 0; node < this.n; node += 1) {
      const above = this.parent[node];
      const inside = above >= 0 && isWithin[above];
      if (!inside && this.site[node] === site) nodes.push(node);
      isWithin[node] = inside || this.site[node] === site;
    }
    return nodes;
  }

  /** Return the callees of a function, wherever it is called: its calls are one node, the root. */
  calleesOf(site) {
    const tree = new FlameTree();
    const target = [];
    for (const node of this.outermost(site)) target[node] = tree.node(-1, site);
    for (let node = 0; node < this.n; node += 1) {
      const above = this.parent[node];
      if (target[node] === undefined && above >= 0 && target[above] !== undefined) {
        target[node] = tree.node(target[above], this.site[node]);
      }
      if (target[node] !== undefined) tree.add(target[node], this.weights(node));
    }
    return tree;
  }

  /** Return the callers of a function: its calls are the root, and callers are below callees. */
  callersOf(site) {
    const tree = new FlameTree();
    for (const node of this.outermost(site)) {
      const weights = { ...this.weights(node), own: 0 };
      let at = tree.node(-1, site);
      tree.add(at, weights);
      for (let above = this.parent[node]; above >= 0; above = this.parent[above]) {
        at = tree.node(at, this.site[above]);
        tree.add(at, weights);
      }
    }
    return tree;
  }

  /** Return the roots and the children of each node: the heaviest first, or the first to begin. */
  ordered(byTime, weight = this.total) {
    const children = Array.from({ length: this.n }, () => []);
    const roots = [];
    this.parent.forEach((above, node) => (above < 0 ? roots : children[above]).push(node));
    const heaviest = (a, b) => weight[b] - weight[a] || a - b;
    const earliest = (a, b) => this.first[a] - this.first[b] || heaviest(a, b);
    for (const siblings of [roots, ...children]) siblings.sort(byTime ? earliest : heaviest);
    return { roots, children };
  }
};
