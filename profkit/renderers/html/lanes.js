'use strict';
/** Layout of the timeline's lanes; drawing of slices, ruler and overview. */
profkit.lanes = (() => {
  const rowHeight = 18;
  const laneGap = 8;
  const laneHeight = 22;
  const fewRows = 10;
  const fewRanks = 16;

  /** A pattern that is drawn over a colour, so that colour is not the only sign. */
  function tile(context, pattern, color) {
    if (pattern === 'plain') return null;
    const square = document.createElement('canvas');
    square.width = 8;
    square.height = 8;
    const pen = square.getContext('2d');
    pen.globalAlpha = 0.4;
    pen.strokeStyle = color;
    pen.fillStyle = color;
    pen.lineWidth = 2;
    if (pattern === 'stripes') {
      for (const shift of [-8, 0, 8]) {
        pen.moveTo(shift, 8);
        pen.lineTo(shift + 8, 0);
      }
      pen.stroke();
    } else {
      pen.fillRect(1, 1, 2, 2);
      pen.fillRect(5, 5, 2, 2);
    }
    return context.createPattern(square, 'repeat');
  }

  let cachedPalettes = new Map();
  window.addEventListener('profkit:theme', () => { cachedPalettes = new Map(); });

  /** The colours of a timeline, cached until the theme changes. */
  function palette(context, styles) {
    const cached = cachedPalettes.get(styles) ?? readPalette(context, styles);
    cachedPalettes.set(styles, cached);
    return cached;
  }

  function readPalette(context, styles) {
    const names = ['--bg', '--fg', '--muted', '--line', '--ground', '--accent'];
    const colors = Object.fromEntries(names.map((name) => [name.slice(2), profkit.color(name)]));
    const fills = styles.map(({ color, pattern }) => {
      const fill = profkit.color(color);
      const text = profkit.canvas.textColorOn(fill);
      return { fill, text, tile: tile(context, pattern, text) };
    });
    return { ...colors, fills };
  }

  /** The position of each lane. Lanes of many rows are collapsed to their first rows. */
  class Layout {
    constructor(lanes) {
      this.lanes = lanes;
      const threads = lanes.filter((lane) => lane.kind === 'thread');
      const nRanks = lanes.filter((lane) => lane.kind === 'rank').length;
      this.isOpen = lanes.map((lane) => lane.kind !== 'other' && threads.indexOf(lane) < 2
        && nRanks <= fewRanks);
      this.place();
    }

    /** Visible rows of a lane. */
    nVisible(index) {
      const { nRows } = this.lanes[index];
      if (this.isOpen[index]) return nRows;
      return Math.min(nRows, { thread: fewRows / 2, rank: 2 }[this.lanes[index].kind] ?? 1);
    }

    place() {
      let y = laneGap / 2;
      this.top = [];
      this.rows = [];
      this.lanes.forEach((lane, index) => {
        this.top.push(y);
        const n = this.nVisible(index);
        for (let i = 0; i < n; i += 1) {
          this.rows.push({ row: lane.firstRow + i, y: y + i * rowHeight, lane: index });
        }
        y += Math.max(laneHeight, n * rowHeight) + laneGap;
      });
      this.height = y;
    }

    toggle(index) {
      this.isOpen[index] = !this.isOpen[index];
      this.place();
    }

    canOpen(index) {
      return this.lanes[index].nRows > 1;
    }

    /** The row at a vertical position, or undefined between rows. */
    rowAt(y) {
      return this.rows.find((each) => y >= each.y && y < each.y + rowHeight);
    }
  }

  /** Draws slices. */
  class Painter {
    constructor(context, colors, sites, view, width) {
      Object.assign(this, { context, colors, sites, view, width });
      this.scale = width / (view.to - view.from);
      this.pixelNs = (view.to - view.from) / width;
    }

    x(ns) {
      return (ns - this.view.from) * this.scale;
    }

    /** Draw the visible slices of a row; `matches` are the sites that a search found, or null. */
    row(level, row, y, matches) {
      const last = level.first[row + 1];
      let drawnTo = -1;
      for (let i = profkit.slices.firstAfter(level, row, this.view.from); i < last; i += 1) {
        if (level.start[i] > this.view.to) break;
        const left = Math.max(-2, this.x(level.start[i]));
        const right = Math.min(this.width + 2, this.x(level.end[i]));
        const isMatch = matches === null || matches.has(level.site[i]);
        // Of the slices within one pixel only the first is drawn, and all that a search found.
        if (right < drawnTo && !(matches !== null && isMatch)) continue;
        this.slice(level, i, left, Math.max(right - left, 1), y, isMatch);
        drawnTo = Math.max(right, left + 1);
      }
    }

    slice(level, i, left, width, y, isMatch) {
      const { context } = this;
      const site = level.site[i];
      const style = this.colors.fills[this.sites.style[site]];
      const length = level.end[i] - level.start[i];
      const density = level.n[i] > 1 && length > 0 ? 0.4 + 0.6 * (level.busy[i] / length) : 1;
      const height = rowHeight - 2;
      context.globalAlpha = isMatch ? density : 0.12;
      context.fillStyle = style.fill;
      context.fillRect(left, y, width > 2.5 ? width - 0.6 : width, height);
      if (style.tile && width > 3) {
        context.fillStyle = style.tile;
        context.fillRect(left, y, width - 0.6, height);
      }
      context.globalAlpha = 1;
      if (width > 26 && isMatch) this.label(level, i, left, width, y, style);
    }

    label(level, i, left, width, y, style) {
      const { context, sites } = this;
      const n = level.n[i];
      const name = sites.texts[sites.short[level.site[i]]];
      const text = n > 1 ? `${profkit.formatCount(n)} × ${name}…` : name;
      const from = Math.max(left, 0);
      const room = Math.min(left + width, this.width) - from - 8;
      if (style.tile && room > 0) {
        const wide = Math.min(room, context.measureText(text).width);
        context.fillStyle = style.fill;
        context.fillRect(from + 2, y + 2, wide + 4, rowHeight - 6);
      }
      context.fillStyle = style.text;
      profkit.canvas.write(context, text, from + 4, y + rowHeight / 2 - 0.5, room);
    }

    /** A frame around the selected slice. */
    frame(y, start, end) {
      const left = this.x(start);
      const { context } = this;
      context.strokeStyle = this.colors.fg;
      context.lineWidth = 2;
      context.strokeRect(left, y - 1, Math.max(2, this.x(end) - left), rowHeight);
    }
  }

  /** Draw the visible lanes. */
  function drawSlices(canvas, state) {
    const { layout, level, sites, styles, view, scroll, size, matches, selected } = state;
    const context = profkit.canvas.fitted(canvas, size.width, size.height);
    const colors = palette(context, styles);
    const painter = new Painter(context, colors, sites, view, size.width);
    for (const { at } of ticks(view, size.width)) {
      context.fillStyle = colors.line;
      context.fillRect(Math.round(painter.x(at)), 0, 1, size.height);
    }
    layout.top.forEach((y) => {
      context.fillStyle = colors.line;
      context.fillRect(0, y - laneGap / 2 - scroll, size.width, 1);
    });
    for (const { row, y } of layout.rows) {
      const top = y - scroll;
      if (top < -rowHeight || top > size.height) continue;
      painter.row(level, row, top, matches);
      if (selected && selected.row === row) painter.frame(top, selected.start, selected.end);
    }
  }

  /** Round times within a range, with their labels. */
  function ticks({ from, to }, width) {
    const rough = ((to - from) / width) * 110;
    const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
    const step = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
    const [scale, unit] = profkit.unitFor(to, profkit.timeUnits);
    const digits = Math.max(0, Math.ceil(Math.log10(scale / step) - 1e-9));
    const found = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const text = (at / scale).toLocaleString('en-US',
        { minimumFractionDigits: digits, maximumFractionDigits: digits });
      found.push({ at, text: `${text} ${unit}` });
    }
    return found;
  }

  function drawRuler(canvas, view, width, height) {
    const context = profkit.canvas.fitted(canvas, width, height);
    context.fillStyle = profkit.color('--muted');
    const scale = width / (view.to - view.from);
    for (const { at, text } of ticks(view, width)) {
      const x = (at - view.from) * scale;
      context.fillRect(Math.round(x), height - 5, 1, 5);
      context.fillText(text, x + 4, height / 2);
    }
  }

  /** Images of whole recordings by canvas, cached until theme, width or level change. */
  const caches = new Map();

  function overviewImage(shownOn, { level, sites, styles, whole, size, rows }) {
    const cache = caches.get(shownOn) ?? { canvas: document.createElement('canvas'), key: [] };
    caches.set(shownOn, cache);
    const key = [level, size.width, window.devicePixelRatio, document.documentElement.dataset.theme];
    if (key.every((each, index) => each === cache.key[index])) return cache.canvas;
    cache.key = key;
    const context = profkit.canvas.fitted(cache.canvas, size.width, size.height);
    const colors = palette(context, styles);
    const scale = size.width / (whole.to - whole.from);
    const rowPx = Math.floor((size.height - 4) / Math.max(1, rows.length));
    rows.forEach((row, index) => {
      let drawnTo = -1;
      for (let i = level.first[row]; i < level.first[row + 1]; i += 1) {
        const left = (level.start[i] - whole.from) * scale;
        const width = Math.max(0.7, (level.end[i] - level.start[i]) * scale);
        if (left + width < drawnTo) continue;
        context.fillStyle = colors.fills[sites.style[level.site[i]]].fill;
        context.fillRect(left, 2 + index * rowPx, width, rowPx - 1);
        drawnTo = left + width + 0.2;
      }
    });
    return cache.canvas;
  }

  /** The whole recording, with a frame around the visible range. */
  function drawOverview(canvas, state) {
    const { styles, whole, view, size } = state;
    const image = overviewImage(canvas, state);
    const context = profkit.canvas.fitted(canvas, size.width, size.height);
    const colors = palette(context, styles);
    const scale = size.width / (whole.to - whole.from);
    if (image.width && image.height) {
      context.drawImage(image, 0, 0, size.width, size.height);
    }
    const [left, right] = [view.from, view.to].map((ns) => (ns - whole.from) * scale);
    context.globalAlpha = 0.7;
    context.fillStyle = colors.bg;
    context.fillRect(0, 0, left, size.height);
    context.fillRect(right, 0, size.width - right, size.height);
    context.globalAlpha = 1;
    context.strokeStyle = colors.accent;
    context.lineWidth = 2;
    context.strokeRect(left + 1, 1, Math.max(3, right - left - 2), size.height - 2);
  }

  return { Layout, drawSlices, drawRuler, drawOverview, rowHeight, laneHeight };
})();
