'use strict';
/** Layout of the timeline's lanes; drawing of slices, ruler and overview. */
profkit.lanes = (() => {
  const rowHeight = 18;
  const laneGap = 8;
  const minHeight = 4;
  const laneHeight = 22;
  const fewRows = 10;
  const fewRanks = 16;

  let cachedColors = null;
  window.addEventListener('profkit:theme', () => { cachedColors = null; });

  /** Return the colours of the page that drawings use, cached until the theme changes. */
  function pageColors() {
    const names = ['--bg', '--fg', '--muted', '--line', '--accent'];
    cachedColors = cachedColors ?? Object.fromEntries(
      names.map((name) => [name.slice(2), profkit.color(name)]));
    return cachedColors;
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

    /** Return the number of visible rows of a lane. */
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

    /** Return the vertical position of a row, or of its lane's last row if it is not visible. */
    yOf(row) {
      const lane = this.laneOf(row);
      const { firstRow } = this.lanes[lane];
      return this.top[lane] + Math.min(row - firstRow, this.nVisible(lane) - 1) * rowHeight;
    }

    /** Return the index of the lane that a row is in. */
    laneOf(row) {
      return this.lanes.findLastIndex(({ firstRow }) => firstRow <= row);
    }

    /** Return the rows that overlap a range of heights. */
    rowsWithin(top, bottom) {
      return this.rows.filter(({ y }) => y + rowHeight > top && y < bottom);
    }

    /** Return the row at a vertical position, or undefined between rows. */
    rowAt(y) {
      return this.rows.find((row) => y >= row.y && y < row.y + rowHeight);
    }
  }

  /** Draws slices. */
  class Painter {
    constructor(context, { colors, sites, view, size }) {
      const { width } = size;
      Object.assign(this, { context, colors: colors.ofSites(context), sites, view, width });
      this.scale = width / (view.to - view.from);
    }

    x(ns) {
      return (ns - this.view.from) * this.scale;
    }

    /** Return the pixel of a time, at most some widths outside: a canvas is not exact far away. */
    near(ns) {
      return Math.min(Math.max(this.x(ns), -9 * this.width), 10 * this.width);
    }

    /**
     * Draw the visible slices of a row. Those narrower than a pixel are one bar for each pixel, as
     * high as the part of it that events cover, in the colour of the slice with most of it.
     */
    drawRow(level, row, y, alpha) {
      const { start, end, busy, site } = level;
      const { context, scale, view, colors } = this;
      const last = level.first[row + 1];
      const full = rowHeight - 2;
      const widest = Math.ceil(this.width);
      let bar = { at: -1, wide: 0, high: 0, fill: '' };
      let [pixel, covered, most, mostSite] = [-1, 0, 0, 0];

      // Adjacent pixels of one height and colour are one rectangle: a row has few of them.
      const drawBar = () => {
        if (bar.at < 0) return;
        context.fillStyle = bar.fill;
        context.fillRect(bar.at, y + full - bar.high, bar.wide, bar.high);
      };
      const endPixel = () => {
        if (pixel < 0) return;
        const high = Math.min(full, Math.max(minHeight, Math.round(full * covered * scale)));
        const { fill } = colors[mostSite];
        if (bar.at + bar.wide === pixel && bar.high === high && bar.fill === fill) bar.wide += 1;
        else {
          drawBar();
          bar = { at: pixel, wide: 1, high, fill };
        }
        pixel = -1;
      };

      context.globalAlpha = alpha;
      for (let i = profkit.slices.firstAfter(level, row, view.from); i < last; i += 1) {
        const left = (start[i] - view.from) * scale;
        if (left > widest) break;
        const right = (end[i] - view.from) * scale;
        if (right - left < 1.5) {
          const leftPixel = Math.max(0, Math.floor(left));
          if (leftPixel !== pixel) {
            endPixel();
            [pixel, covered, most] = [leftPixel, 0, -1];
          }
          covered += busy[i];
          if (busy[i] > most) {
            most = busy[i];
            mostSite = site[i];
          }
        } else {
          endPixel();
          this.drawSlice(level, i, Math.max(-2, left), Math.min(this.width + 2, right), y, alpha);
        }
      }
      endPixel();
      drawBar();
      context.globalAlpha = 1;
    }

    /** Draw one slice; if it merges several events, as high as the part of it that they cover. */
    drawSlice(level, i, left, right, y, alpha) {
      const { context } = this;
      const style = this.colors[level.site[i]];
      const length = level.end[i] - level.start[i];
      const full = rowHeight - 2;
      const part = level.n[i] > 1 && length > 0 ? level.busy[i] / length : 1;
      const high = Math.max(minHeight, Math.round(full * part));
      // A gap sets slices apart that are wide enough for it.
      const width = right - left > 2.5 ? right - left - 0.6 : right - left;

      context.fillStyle = style.fill;
      context.fillRect(left, y + full - high, width, high);
      if (style.tile && width > 3) {
        context.fillStyle = style.tile;
        context.fillRect(left, y + full - high, width, high);
      }
      if (width > 26) {
        context.globalAlpha = 1;
        this.drawLabel(level, i, left, width, y, alpha === 1 ? style : null, part);
        context.globalAlpha = alpha;
      }
    }

    /** Write the name of a slice; without a style, of one that a search did not find. */
    drawLabel(level, i, left, width, y, style, part) {
      const { context, sites } = this;
      const n = level.n[i];
      const name = sites.texts[sites.short[level.site[i]]];
      const text = n > 1 ? `${profkit.formatCount(n)} × ${name}…` : name;
      const from = Math.max(left, 0);
      const room = Math.min(left + width, this.width) - from - 8;

      // A low bar has its text above it, on the ground of the page.
      const isOnPage = part < 0.85;
      if (style && room > 0 && (style.tile || isOnPage)) {
        const wide = Math.min(room, context.measureText(text).width);
        context.fillStyle = isOnPage ? pageColors().bg : style.fill;
        context.fillRect(from + 2, y + 2, wide + 4, rowHeight - 6);
      }
      const page = pageColors();
      context.fillStyle = style ? (isOnPage ? page.fg : style.text) : page.muted;
      profkit.canvas.write(context, text, from + 4, y + rowHeight / 2 - 0.5, room);
    }

    /** Draw the slices of a row that a search found, at least two pixels wide. */
    drawMatches(occurrences, row, y) {
      const { level, slices } = occurrences;
      let [place, last] = occurrences.within(row, this.view.from);
      let drawnTo = -1;
      for (; place < last; place += 1) {
        const i = slices[place];
        const left = Math.max(-2, this.x(level.start[i]));
        if (left > this.width) break;
        const right = Math.min(this.width + 2, Math.max(this.x(level.end[i]), left + 2));
        if (right <= drawnTo) continue;
        this.drawSlice(level, i, left, right, y, 1);
        drawnTo = right;
      }
    }

    /** Draw a frame around a slice. */
    drawFrame(y, { start, end }) {
      const left = this.near(start);
      const { context } = this;
      context.strokeStyle = pageColors().fg;
      context.lineWidth = 2;
      context.strokeRect(left, y - 1, Math.max(2, this.near(end) - left), rowHeight);
    }

    /** Draw an arrow from the start of a launch to the start of its device work. */
    drawArrow(from, to) {
      const { context } = this;
      const isDown = to.y >= from.y;
      const [x1, y1] = [this.near(from.start), from.y + (isDown ? rowHeight - 2 : 0)];
      const [x2, y2] = [this.near(to.start), to.y + (isDown ? 0 : rowHeight - 2)];
      const bend = Math.min(60, 20 + Math.abs(x2 - x1) / 3);
      const head = isDown ? -5 : 5;

      // The first, wider pass is a halo that sets the arrow apart from slices.
      for (const [color, width] of [[pageColors().bg, 4], [pageColors().accent, 2]]) {
        context.strokeStyle = color;
        context.lineWidth = width;
        context.beginPath();
        context.moveTo(x1, y1);
        context.bezierCurveTo(x1 + bend, y1, x2 - bend, y2 + 3 * head, x2, y2);
        context.moveTo(x2 - 5, y2 + head);
        context.lineTo(x2, y2);
        context.lineTo(x2 + 3, y2 + head - 1);
        context.stroke();
      }
    }

    /** Draw a time range over some height, with its bounds. */
    drawArea(from, to, top, bottom) {
      const { context } = this;
      const [left, right] = [this.near(from), this.near(to)];
      context.globalAlpha = 0.18;
      context.fillStyle = pageColors().accent;
      context.fillRect(left, top, right - left, bottom - top);
      context.globalAlpha = 1;
      context.strokeStyle = pageColors().accent;
      context.lineWidth = 1.5;
      context.strokeRect(left, top, Math.max(1, right - left), bottom - top);
    }
  }

  /**
   * Draw the visible lanes, and over them what is selected: `area`, `selected` and its `arrows`.
   * With `matches`, the slices that a search found are drawn over pale ones.
   */
  function drawSlices(canvas, state) {
    const { layout, level, view, scroll, size, matches, selected, arrows, area } = state;
    const context = profkit.canvas.fitted(canvas, size.width, size.height);
    const painter = new Painter(context, state);

    for (const { at } of ticks(view, size.width)) {
      context.fillStyle = pageColors().line;
      context.fillRect(Math.round(painter.x(at)), 0, 1, size.height);
    }
    layout.top.forEach((y) => {
      context.fillStyle = pageColors().line;
      context.fillRect(0, y - laneGap / 2 - scroll, size.width, 1);
    });

    for (const { row, y } of layout.rows) {
      const top = y - scroll;
      if (top < -rowHeight || top > size.height) continue;
      painter.drawRow(level, row, top, matches ? 0.15 : 1);
      if (matches) painter.drawMatches(matches, row, top);
      if (selected && selected.row === row) painter.drawFrame(top, selected);
    }

    for (const [from, to] of arrows) {
      painter.drawArrow(...[from, to].map(({ row, start }) => (
        { start, y: layout.yOf(row) - scroll })));
    }
    if (area) {
      painter.drawArea(area.from, area.to, Math.max(-2, area.top - scroll),
        Math.min(size.height + 2, area.bottom - scroll));
    }
  }

  /** Return round times within a range, with their labels. */
  function ticks({ from, to }, width) {
    const rough = ((to - from) / width) * 110;
    const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
    const [scale, unit] = profkit.unitFor(to, profkit.timeUnits);
    const digits = Math.max(0, Math.ceil(Math.log10(scale / step) - 1e-9));

    const marks = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const text = (at / scale).toLocaleString('en-US',
        { minimumFractionDigits: digits, maximumFractionDigits: digits });
      marks.push({ at, text: `${text} ${unit}` });
    }
    return marks;
  }

  function drawRuler(canvas, view, width, height) {
    const context = profkit.canvas.fitted(canvas, width, height);
    context.fillStyle = pageColors().muted;
    const scale = width / (view.to - view.from);
    for (const { at, text } of ticks(view, width)) {
      const x = (at - view.from) * scale;
      context.fillRect(Math.round(x), height - 5, 1, 5);
      const isWhole = x + 4 + context.measureText(text).width <= width;
      if (isWhole) context.fillText(text, x + 4, height / 2);
    }
  }

  /** Images of whole recordings by canvas, cached until theme, colours, width or level change. */
  const caches = new Map();

  function overviewImage(shownOn, { level, colors, whole, size, rows }) {
    const cache = caches.get(shownOn) ?? { canvas: document.createElement('canvas'), key: [] };
    caches.set(shownOn, cache);
    const key = [level, size.width, window.devicePixelRatio, colors.by,
      document.documentElement.dataset.theme];
    if (key.every((part, index) => part === cache.key[index])) return cache.canvas;
    cache.key = key;

    const context = profkit.canvas.fitted(cache.canvas, size.width, size.height);
    const fills = colors.ofSites(context);
    const scale = size.width / (whole.to - whole.from);
    const rowPx = Math.floor((size.height - 4) / Math.max(1, rows.length));

    rows.forEach((row, index) => {
      let drawnTo = -1;
      for (let i = level.first[row]; i < level.first[row + 1]; i += 1) {
        const left = (level.start[i] - whole.from) * scale;
        const width = Math.max(0.7, (level.end[i] - level.start[i]) * scale);
        if (left + width < drawnTo) continue;
        context.fillStyle = fills[level.site[i]].fill;
        context.fillRect(left, 2 + index * rowPx, width, rowPx - 1);
        drawnTo = left + width + 0.2;
      }
    });
    return cache.canvas;
  }

  /** Draw the whole recording, with a frame around the visible range. */
  function drawOverview(canvas, state) {
    const { whole, view, size } = state;
    const image = overviewImage(canvas, state);
    const context = profkit.canvas.fitted(canvas, size.width, size.height);
    const colors = pageColors();
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
