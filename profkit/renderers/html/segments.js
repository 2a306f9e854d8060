'use strict';
/**
 * The segments of a device to scale, with the blocks in them: bars one after the other, in lines as
 * text. Blocks below a pixel share it; its colour is that of most of its bytes.
 */
profkit.Segments = class {
  static lineHeight = 20;

  static barHeight = 15;

  /**
   * @param {HTMLElement} root a figure of memory.html.j2
   * @param data what memory.py writes of a device
   * @param columns its decoded columns
   * @param {(at: number) => string} timeName a time of an allocation as text
   */
  constructor(root, data, columns, timeName) {
    const [size, nBlocks, stream, kind, gap, bytes, state, place, use, at] = columns;
    Object.assign(this, { root, data, timeName, size, nBlocks, stream, kind, bytes, state, place, use, at });
    const part = (name) => root.querySelector(name);
    [this.view, this.canvas, this.tip] = ['.segment-map', 'canvas', '.slice-tip'].map(part);
    [this.status, this.legend, this.zoom] = ['.flame-selected', '.styles', '.zoom'].map(part);
    this.inputs = [...root.querySelectorAll('input')];

    // The first block of each segment, and the place of each block within its segment.
    this.first = new Float64Array(size.length + 1);
    this.offset = new Float64Array(bytes.length);
    this.segment = new Float64Array(bytes.length);
    for (let segment = 0, block = 0; segment < size.length; segment += 1) {
      this.first[segment] = block;
      for (let end = 0; block < this.first[segment] + nBlocks[segment]; block += 1) {
        this.offset[block] = end + gap[block];
        this.segment[block] = segment;
        end = this.offset[block] + bytes[block];
      }
    }
    this.first[size.length] = bytes.length;

    this.picture = document.createElement('canvas');
    this.selected = null;
    this.show(null);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.view);
  }

  /** Show one segment, or all of them (null). */
  show(segment) {
    this.shown = segment;
    this.zoom.textContent = segment === null ? 'Zoom to segment' : 'All segments';
    this.draw();
    this.describe();
  }

  /** Return the first shown segment, and the one after the last. */
  get range() {
    return this.shown === null ? [0, this.size.length] : [this.shown, this.shown + 1];
  }

  /** Return the kind of a block by the chosen property, 0 for free memory; labels and colours. */
  kinds() {
    const { uses, until } = this.data;
    if (!this.inputs.find((input) => input.checked && input.value === 'age')) {
      return [(block) => this.use[block] + 1,
        [['free', '--line'], ...uses]];
    }

    const nAges = 4;
    const ages = [1, 2, 3, 4].map((age) => [
      `allocated by ${this.timeName((until * age) / nAges)}`, `--age-${age}`]);
    return [(block) => (this.at[block] ? 2 + Math.min(nAges - 1,
      Math.floor(((this.at[block] - 1) * nAges) / Math.max(1, until))) : 1),
    [['free', '--line'], ['allocated before recording', '--series-8'], ...ages]];
  }

  /** Place the segments on a tape that is cut into lines of a width. */
  layOut(width) {
    const [from, to] = this.range;
    const n = this.first[to] - this.first[from] + to - from;
    const most = this.shown === null ? 28 : 12;
    this.width = width;
    // About 14 pixels for each block, within the limits of a screen.
    this.nLines = Math.max(1, Math.min(most, Math.ceil((n * 14) / width)));
    const tape = this.nLines * width;
    this.between = tape / (to - from) > 6 ? 2 : 0;

    const sizes = this.size.slice(from, to);
    const whole = sizes.reduce((sum, size) => sum + size, 0);
    this.scale = (tape - this.between * (to - from)) / whole;
    this.start = new Float64Array(to - from + 1);
    sizes.forEach((size, i) => {
      this.start[i + 1] = this.start[i] + size * this.scale + this.between;
    });
  }

  /** Return the pixel of a segment's byte on the tape. */
  x(segment, offset) {
    return this.start[segment - this.range[0]] + offset * this.scale;
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    this.layOut(width);
    const { lineHeight, barHeight } = profkit.Segments;
    const height = this.nLines * lineHeight;
    this.canvas.style.height = `${height}px`;
    const context = profkit.canvas.fitted(this.picture, width, height);
    const [kindOf, labels] = this.kinds();
    const fills = labels.map(([, name]) => profkit.color(name));
    const sums = labels.map(() => 0);

    const fill = (kind, from, to) => {
      context.fillStyle = fills[kind];
      for (let x = from, end; x < to; x = end) {
        const line = Math.floor(x / width);
        end = Math.min(to, (line + 1) * width);
        context.fillRect(x - line * width, line * lineHeight, end - x, barHeight);
      }
    };

    // Of the blocks that share a pixel, each kind has its part of the pixel.
    const inPixel = labels.map(() => 0);
    let pixel = 0;
    /** Draw the pixel whose blocks are known. */
    const flush = () => {
      const most = inPixel.reduce((best, part, kind) => (part > inPixel[best] ? kind : best), 0);
      if (inPixel[most] > 1e-6) fill(most, pixel, pixel + 1);
      inPixel.fill(0);
    };
    const add = (kind, from, to) => {
      sums[kind] += (to - from) / this.scale;
      for (let x = from; x < to;) {
        if (Math.floor(x) !== pixel) {
          flush();
          pixel = Math.floor(x);
        }
        const whole = Math.floor(to);
        if (x === pixel && whole > x + 1) {
          // An edge sets large blocks apart.
          fill(kind, x, whole - 0.7);
          pixel = whole;
          x = whole;
        } else {
          const end = Math.min(to, pixel + 1);
          inPixel[kind] += end - x;
          x = end;
        }
      }
    };

    const [first, last] = this.range;
    for (let segment = first; segment < last; segment += 1) {
      let end = this.x(segment, 0);
      for (let block = this.first[segment]; block < this.first[segment + 1]; block += 1) {
        const from = this.x(segment, this.offset[block]);
        const to = from + this.bytes[block] * this.scale;
        if (from > end) add(0, end, from);
        add(this.state[block] ? kindOf(block) : 0, from, to);
        end = to;
      }
      add(0, end, this.x(segment, this.size[segment]));
    }
    flush();
    this.outline();

    const text = (bytes) => profkit.formatBytes(Math.round(bytes));
    profkit.showColors(this.legend, labels.flatMap(([label, name], kind) => (
      sums[kind] >= 0.5 ? [[`${label} ${text(sums[kind])}`, name]] : [])));
    this.view.dataset.drawn = String(this.nLines);
  }

  /** Show the picture, with an outline of the selected block on each line that it is on. */
  outline() {
    const [block, { width }, { lineHeight, barHeight }] = [this.selected, this, profkit.Segments];
    const height = this.nLines * lineHeight;
    const context = profkit.canvas.fitted(this.canvas, width, height);
    context.drawImage(this.picture, 0, 0, width, height);
    if (block === null) return;

    const from = this.x(this.segment[block], this.offset[block]);
    const to = Math.max(from + 3, from + this.bytes[block] * this.scale);
    context.strokeStyle = profkit.color('--fg');
    context.lineWidth = 2;
    for (let line = Math.floor(from / width); line * width < to; line += 1) {
      const left = Math.max(0, from - line * width);
      const right = Math.min(width, to - line * width);
      context.strokeRect(left + 1, line * lineHeight + 1, Math.max(1, right - left - 2), barHeight - 2);
    }
  }

  /** Return the block at a place of the tape, or the nearest in its segment; null without blocks. */
  blockAt(tape) {
    const [from, to] = this.range;
    const segment = Math.max(from, profkit.firstWhere(
      from, to, (index) => this.start[index - from] > tape) - 1);
    const [first, end] = [this.first[segment], this.first[segment + 1]];
    const offset = (tape - this.start[segment - from]) / this.scale;
    const block = profkit.firstWhere(first, end, (index) => this.offset[index] > offset) - 1;
    return first < end ? Math.max(first, block) : null;
  }

  tapeAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const line = Math.floor((event.clientY - box.top) / profkit.Segments.lineHeight);
    const x = Math.max(0, Math.min(this.width - 1, event.clientX - box.left));
    return Math.max(0, Math.min(this.nLines - 1, line)) * this.width + x;
  }

  /** Return a block's size and use, where and when it was allocated, and its segment. */
  about(block) {
    const { data } = this;
    const [bytes, segment] = [profkit.formatBytes(this.bytes[block]), this.segment[block]];
    const kind = ['large', 'small', 'private large', 'private small'][this.kind[segment]];
    const stream = data.nStreams > 1
      ? `, stream ${this.stream[segment] + 1} of ${data.nStreams}` : '';
    const within = `segment ${profkit.formatCount(segment + 1)} `
      + `of ${profkit.formatCount(this.size.length)} `
      + `(${profkit.formatBytes(this.size[segment])}, ${kind}${stream})`;
    if (!this.state[block]) return [`${bytes} free`, `in ${within}`];

    const state = this.state[block] === 2 ? ', freed but pending on another stream' : '';
    const when = this.at[block] ? `allocated at ${this.timeName(this.at[block] - 1)}`
      : 'allocated before recording';
    return [`${bytes}, ${data.uses[this.use[block]][0]}${state}`, data.places[this.place[block]], when,
      `in ${within}`];
  }

  select(block) {
    this.selected = block;
    this.outline();
    this.describe();
  }

  describe() {
    this.zoom.disabled = this.selected === null && this.shown === null;
    if (this.selected === null) {
      this.status.textContent = 'Select a block to see what it is.';
      return;
    }
    const [name, ...remarks] = this.about(this.selected);
    this.status.replaceChildren(profkit.element('b', {}, name), ` · ${remarks.filter(Boolean).join(' · ')}`);
  }

  /** Select a block some blocks or some lines away, or the first one. */
  move(blocks, lines) {
    const [from, to] = this.range.map((segment) => this.first[segment]);
    if (from === to) return;
    let block = this.selected;
    if (block === null || block < from || block >= to) block = from;
    else if (lines) {
      const tape = this.x(this.segment[block], this.offset[block]) + lines * this.width;
      if (tape >= 0 && tape < this.nLines * this.width) block = this.blockAt(tape) ?? block;
    } else block += blocks;
    this.select(Math.max(from, Math.min(to - 1, block)));
  }

  toggle() {
    if (this.shown !== null) this.show(null);
    else if (this.selected !== null) this.show(this.segment[this.selected]);
  }

  listen() {
    const { canvas, tip, view } = this;
    const keys = {
      ArrowLeft: () => this.move(-1, 0),
      ArrowRight: () => this.move(1, 0),
      ArrowUp: () => this.move(0, -1),
      ArrowDown: () => this.move(0, 1),
      Home: () => this.move(-Infinity, 0),
      End: () => this.move(Infinity, 0),
      Enter: () => this.toggle(),
      Escape: () => this.show(null),
    };
    view.addEventListener('keydown', (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      keys[event.key]();
      event.preventDefault();
    });
    canvas.addEventListener('pointermove', (event) => {
      const block = this.blockAt(this.tapeAt(event));
      if (block === null) return;
      const [name, ...remarks] = this.about(block);
      tip.replaceChildren(profkit.element('b', {}, name),
        ...remarks.filter(Boolean).map((line) => profkit.element('div', {}, line)));
      profkit.canvas.showTip(tip, view.getBoundingClientRect(), event);
    });
    canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
    canvas.addEventListener('click', (event) => this.select(this.blockAt(this.tapeAt(event))));
    canvas.addEventListener('dblclick', () => this.toggle());
    this.zoom.addEventListener('click', () => this.toggle());
    for (const input of this.inputs) input.addEventListener('change', () => this.draw());
    window.addEventListener('profkit:theme', () => this.draw());
  }
};
