'use strict';
/** How the timeline looks: where each lane is, and slices, ruler and overview on their canvases. */
profkit.lanes = (() => {
  const rowHeight = 18;
  const laneGap = 8;
  const laneHeight = 22;
  const fewRows = 10;

  /** A small square that is laid over a colour, so that colour is not the only sign. */
  function tile(context, pattern, ink) {
    if (pattern === 'plain') return null;
    const square = document.createElement('canvas');
    square.width = 8;
    square.height = 8;
    const pen = square.getContext('2d');
    pen.globalAlpha = 0.4;
    pen.strokeStyle = ink;
    pen.fillStyle = ink;
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

  let known = null;
  window.addEventListener('profkit:theme', () => { known = null; });

  /** Colours of the page as they are now: looked up anew when the theme changes. */
  function palette(context, looks) {
    known = known ?? colorsNow(context, looks);
    return known;
  }

  function colorsNow(context, looks) {
    const names = ['--bg', '--fg', '--muted', '--line', '--ground', '--accent'];
    const colors = Object.fromEntries(names.map((name) => [name.slice(2), profkit.color(name)]));
    const fills = looks.map(({ color, pattern }) => {
      const fill = profkit.color(color);
      const ink = profkit.canvas.isLight(fill) ? '#000000' : '#ffffff';
      return { fill, ink, tile: tile(context, pattern, ink) };
    });
    return { ...colors, fills };
  }

  /** Where each lane is. Lanes of many rows begin with the first ones, and open when asked. */
  class Layout {
    constructor(lanes) {
      this.lanes = lanes;
      const threads = lanes.filter((lane) => lane.kind === 'thread');
      this.isOpen = lanes.map((lane) => lane.kind !== 'other' && threads.indexOf(lane) < 2);
      this.place();
    }

    /** How many rows of a lane are shown. */
    nShown(place) {
      const { nRows } = this.lanes[place];
      if (this.isOpen[place]) return nRows;
      return Math.min(nRows, this.lanes[place].kind === 'thread' ? fewRows / 2 : 1);
    }

    place() {
      let y = laneGap / 2;
      this.top = [];
      this.rows = [];
      this.lanes.forEach((lane, place) => {
        this.top.push(y);
        const n = this.nShown(place);
        for (let i = 0; i < n; i += 1) {
          this.rows.push({ row: lane.firstRow + i, y: y + i * rowHeight, lane: place });
        }
        y += Math.max(laneHeight, n * rowHeight) + laneGap;
      });
      this.height = y;
    }

    toggle(place) {
      this.isOpen[place] = !this.isOpen[place];
      this.place();
    }

    canOpen(place) {
      return this.lanes[place].nRows > 1;
    }

    /** The row at a height, or undefined between rows. */
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

    /** The slices of a row that can be seen. `marked` are sites that stand out, or null. */
    row(level, row, y, marked) {
      const last = level.first[row + 1];
      let drawnTo = -1;
      for (let i = profkit.slices.firstAfter(level, row, this.view.from); i < last; i += 1) {
        if (level.start[i] > this.view.to) break;
        const left = Math.max(-2, this.x(level.start[i]));
        const right = Math.min(this.width + 2, this.x(level.end[i]));
        const isMarked = marked === null || marked.has(level.site[i]);
        // Of what shares a pixel the first is drawn, and whatever stands out.
        if (right < drawnTo && !(marked !== null && isMarked)) continue;
        this.slice(level, i, left, Math.max(right - left, 1), y, isMarked);
        drawnTo = Math.max(right, left + 1);
      }
    }

    slice(level, i, left, width, y, isMarked) {
      const { context } = this;
      const site = level.site[i];
      const look = this.colors.fills[this.sites.look[site]];
      const length = level.end[i] - level.start[i];
      const density = level.n[i] > 1 && length > 0 ? 0.4 + 0.6 * (level.busy[i] / length) : 1;
      const height = rowHeight - 2;
      context.globalAlpha = isMarked ? density : 0.12;
      context.fillStyle = look.fill;
      context.fillRect(left, y, width > 2.5 ? width - 0.6 : width, height);
      if (look.tile && width > 3) {
        context.fillStyle = look.tile;
        context.fillRect(left, y, width - 0.6, height);
      }
      context.globalAlpha = 1;
      if (width > 26 && isMarked) this.label(level, i, left, width, y, look);
    }

    label(level, i, left, width, y, look) {
      const { context, sites } = this;
      const n = level.n[i];
      const name = sites.texts[sites.short[level.site[i]]];
      const text = n > 1 ? `${profkit.formatCount(n)} × ${name}…` : name;
      const from = Math.max(left, 0);
      const room = Math.min(left + width, this.width) - from - 8;
      if (look.tile && room > 0) {
        const wide = Math.min(room, context.measureText(text).width);
        context.fillStyle = look.fill;
        context.fillRect(from + 2, y + 2, wide + 4, rowHeight - 6);
      }
      context.fillStyle = look.ink;
      profkit.canvas.write(context, text, from + 4, y + rowHeight / 2 - 0.5, room);
    }

    /** A frame around what was chosen. */
    frame(y, start, end) {
      const left = this.x(start);
      const { context } = this;
      context.strokeStyle = this.colors.fg;
      context.lineWidth = 2;
      context.strokeRect(left, y - 1, Math.max(2, this.x(end) - left), rowHeight);
    }
  }

  /** Draw the lanes that can be seen. */
  function drawSlices(canvas, { layout, level, sites, looks, view, scroll, size, marked, chosen }) {
    const context = profkit.canvas.fitted(canvas, size.width, size.height);
    const colors = palette(context, looks);
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
      painter.row(level, row, top, marked);
      if (chosen && chosen.row === row) painter.frame(top, chosen.start, chosen.end);
    }
  }

  /** Round moments of a stretch of time, and how each is written. */
  function ticks({ from, to }, width, zero = 0) {
    const rough = ((to - from) / width) * 110;
    const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
    const step = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
    const [scale, unit] = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']]
      .find(([size]) => Math.abs(to - zero) >= size) ?? [1, 'ns'];
    const digits = Math.max(0, Math.ceil(Math.log10(scale / step) - 1e-9));
    const found = [];
    for (let at = Math.ceil((from - zero) / step) * step; at <= to - zero; at += step) {
      const text = (at / scale).toLocaleString('en-US',
        { minimumFractionDigits: digits, maximumFractionDigits: digits });
      found.push({ at: at + zero, text: `${text} ${unit}` });
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

  /** The whole recording, small; kept until the theme, the width or the level changes. */
  const kept = { canvas: document.createElement('canvas'), of: [] };

  function wholeOf({ level, sites, looks, whole, size, rows }) {
    const of = [level, size.width, window.devicePixelRatio, document.documentElement.dataset.theme];
    if (of.every((each, place) => each === kept.of[place])) return kept.canvas;
    kept.of = of;
    const context = profkit.canvas.fitted(kept.canvas, size.width, size.height);
    const colors = palette(context, looks);
    const scale = size.width / (whole.to - whole.from);
    const high = Math.floor((size.height - 4) / Math.max(1, rows.length));
    rows.forEach((row, place) => {
      let drawnTo = -1;
      for (let i = level.first[row]; i < level.first[row + 1]; i += 1) {
        const left = (level.start[i] - whole.from) * scale;
        const width = Math.max(0.7, (level.end[i] - level.start[i]) * scale);
        if (left + width < drawnTo) continue;
        context.fillStyle = colors.fills[sites.look[level.site[i]]].fill;
        context.fillRect(left, 2 + place * high, width, high - 1);
        drawnTo = left + width + 0.2;
      }
    });
    return kept.canvas;
  }

  /** The whole recording with a frame around what is shown below. */
  function drawOverview(canvas, state) {
    const { looks, whole, view, size } = state;
    const picture = wholeOf(state);
    const context = profkit.canvas.fitted(canvas, size.width, size.height);
    const colors = palette(context, looks);
    const scale = size.width / (whole.to - whole.from);
    if (picture.width && picture.height) {
      context.drawImage(picture, 0, 0, size.width, size.height);
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
