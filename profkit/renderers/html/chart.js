'use strict';
/**
 * Charts as SVG: stacked bars, or lines over stacked areas, along one axis. The pointer and the
 * arrow keys show the values at a place. Colours are custom properties of the style sheet, so that
 * the theme and print need no redraw.
 */
profkit.chart = (() => {
  const letter = 6.6;
  const maxTipRows = 9;
  const margin = { top: 10, right: 14, bottom: 44 };
  const charts = new Map();
  const sizes = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) charts.get(target).fit(contentRect.width);
  });

  function svg(tag, attributes, ...children) {
    const shape = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(attributes)) shape.setAttribute(name, value);
    shape.append(...children);
    return shape;
  }

  const rounded = (value) => Math.round(value * 10) / 10;

  /** Return about `n` round values from `low` to `high`, as pairs of value and text. */
  function ticks(low, high, n, scales, isWhole) {
    const [size, unit] = profkit.unitFor(Math.max(Math.abs(low), Math.abs(high)), scales);
    const rough = (high - low) / size / Math.max(n, 1) || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    let step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
    if (isWhole) step = Math.max(1, Math.ceil(step));

    // Multiples of the step, so that no error of rounding adds up.
    const marks = [];
    for (let i = Math.ceil(low / size / step - 1e-9); i * step <= high / size + 1e-9; i += 1) {
      const value = Number((i * step).toPrecision(6));
      const text = Number.isInteger(value) ? profkit.formatCount(value) : String(value);
      marks.push([i * step * size, unit && value ? `${text} ${unit}` : text]);
    }
    return marks;
  }

  class Chart {
    constructor(place, spec) {
      this.place = place;
      this.width = 0;
      this.cursor = null;
      this.span = null;
      this.status = profkit.element('p', { class: 'unseen', role: 'status' });
      this.tip = profkit.element('div', { class: 'slice-tip', hidden: true });
      this.picture = profkit.element('div');
      this.legend = profkit.element('ul', { class: 'styles', 'aria-label': 'Colours' });
      place.append(this.picture, this.tip, this.status, this.legend);
      place.tabIndex = 0;
      place.setAttribute('role', 'application');
      this.listen();
      this.update(spec);
    }

    /**
     * Draw other data.
     * @param {object} spec
     * @param {number[]} spec.at the places of the values, ascending; of bars their numbers from 1
     * @param {object[]} spec.series `{kind, label, color, values}`: of `kind` bar, layer or line;
     *   bars and layers are stacked; a value may be null. Optional `isIdle` (hatched), `dash`.
     * @param {(value: number) => string} spec.format a value as text
     * @param {object[]} spec.scales the units of the values, as `profkit.timeUnits`
     * @param {object[]} [spec.atScales] the units of the places; without, they are whole numbers
     * @param {string} spec.axis what the places are
     * @param {(index: number) => string} spec.name a place as text
     * @param {string[]} [spec.names] texts of the ticks of single bars
     * @param {boolean} [spec.holds] whether a value lasts until the next place
     * @param {boolean} [spec.fromLowest] whether the scale of lines begins at the lowest value
     * @param {number} [spec.height]
     * @param {(index: number) => void} [spec.onSelect] a place is clicked, or Enter is pressed
     * @param {(span: number[] | null) => void} [spec.onSpan] first and last index that are selected
     */
    update(spec) {
      // Places of other data are other places.
      if (spec.at.length !== this.spec?.at.length) [this.cursor, this.span] = [null, null];
      this.spec = { height: 300, atScales: [[1, '']], ...spec };
      this.stacked = spec.series.filter(({ kind }) => kind !== 'line');
      this.isBars = spec.series.some(({ kind }) => kind === 'bar');
      this.totals = spec.at.map((_, i) => this.stacked
        .reduce((sum, { values }) => sum + (values[i] ?? 0), 0));
      const swatch = ({ label, color, isIdle, kind, dash }) => profkit.element('li', {},
        profkit.element('i', {
          class: `swatch${isIdle ? ' idle' : ''}${kind === 'line' ? ' stroke' : ''}`
            + `${dash ? ' dash' : ''}`,
          style: `--color: var(${color})`,
        }), label);
      this.legend.replaceChildren(...spec.series.map(swatch));
      this.legend.hidden = spec.series.length < 2;
      if (this.width) this.draw();
    }

    /** Draw in a width in pixels, unless it is drawn in that one. */
    fit(width) {
      if (!width || width === this.width) return;
      this.width = width;
      this.draw();
    }

    draw() {
      this.layOut(this.width);
      const { spec, box } = this;

      const id = `${this.place.id}-idle`;
      const idle = svg('pattern', { id, width: 7, height: 7, patternUnits: 'userSpaceOnUse',
        patternTransform: 'rotate(45)' }, svg('rect', { width: 3, height: 7, class: 'stripe' }));
      this.mark = svg('path', { class: 'cursor' });
      this.chosen = svg('rect', { class: 'span', y: box.top, height: box.bottom - box.top });
      this.picture.replaceChildren(svg('svg', {
        viewBox: `0 0 ${this.width} ${spec.height}`, 'aria-hidden': 'true',
      }, svg('defs', {}, idle), this.axes(), ...this.shapes(id), this.chosen, this.mark));

      this.showSpan(this.span);
      this.hide();
      if (!this.place.dataset.drawn) performance.mark('profkit:chart');
      this.place.dataset.drawn = 'true';
    }

    /** Set the scales, which return the pixels of places and of values. */
    layOut(width) {
      const { at, series, scales, height, fromLowest } = this.spec;
      const values = series.filter(({ kind }) => kind === 'line').flatMap((line) => line.values);
      const lowest = fromLowest ? values.reduce((a, b) => Math.min(a, b ?? a), Infinity) : 0;
      const low = Number.isFinite(lowest) ? lowest : 0;
      let top = 1;
      for (const value of [...values, ...this.totals]) if (value * 1.03 > top) top = value * 1.03;

      // The widest label of a value takes its room from the places.
      this.yTicks = ticks(low, top, height / 60, scales);
      const left = Math.max(...this.yTicks.map(([, text]) => text.length)) * letter + 14;
      this.box = { left, right: width - margin.right, top: margin.top,
        bottom: height - margin.bottom };

      const { right, bottom } = this.box;
      const [first, last] = [at[0], at.at(-1)];
      this.band = this.isBars ? (right - left) / at.length : 0;
      const perPlace = this.isBars ? this.band : (right - left) / (last - first || 1);
      const from = this.isBars ? left + this.band / 2 : left;
      this.x = (place) => rounded(from + (place - first) * perPlace);
      this.y = (value) => rounded(
        bottom - ((value - low) / (top - low || 1)) * (bottom - margin.top),
      );
    }

    axes() {
      const { at, axis, names, atScales } = this.spec;
      const { left, right, top, bottom } = this.box;
      const group = svg('g', { class: 'axes' });
      for (const [value, text] of this.yTicks) {
        const y = this.y(value);
        group.append(svg('path', { d: `M${left} ${y}H${right}` }),
          svg('text', { x: left - 7, y: y + 4, class: 'end' }, text));
      }

      if (names && names.length * 3 * letter < right - left) {
        const room = Math.floor(this.band / letter) - 1;
        names.forEach((name, i) => group.append(svg('text', { x: this.x(at[i]), y: bottom + 17 },
          name.length > room ? `…${name.slice(1 - room)}` : name)));
      } else {
        const isWhole = atScales.length === 1;
        const n = (right - left) / 90;
        for (const [place, text] of ticks(at[0], at.at(-1), n, atScales, isWhole)) {
          // A text in the middle of a tick at the end would be cut off there.
          const half = text.length * letter / 2;
          const x = Math.min(this.x(place), this.width - half);
          group.append(svg('text', { x, y: bottom + 17 }, text));
        }
      }

      group.append(svg('path', { d: `M${left} ${top}V${bottom}H${right}`, class: 'frame' }),
        svg('text', { x: (left + right) / 2, y: bottom + 37 }, axis));
      return group;
    }

    shapes(idle) {
      const below = this.spec.at.map(() => 0);
      const drawn = this.isBars ? this.tallest() : null;
      const paths = [];
      for (const { kind, values, color, isIdle, dash } of this.spec.series) {
        if (kind === 'line') {
          paths.push(svg('path', { class: dash ? 'line dash' : 'line', d: this.line(values),
            style: `stroke: var(${color})` }));
          continue;
        }

        const d = kind === 'bar' ? this.bars(values, below, drawn) : this.area(values, below);
        paths.push(svg('path', { d, class: kind, style: `fill: var(${color})` }));
        if (isIdle) paths.push(svg('path', { d, style: `fill: url(#${idle})` }));
        values.forEach((value, i) => { below[i] += value ?? 0; });
      }
      return paths;
    }

    /** Return the bars to draw: the highest of the bars that share a pixel. */
    tallest() {
      const byPixel = new Map();
      this.spec.at.forEach((place, i) => {
        const pixel = this.band < 1 ? Math.floor(this.x(place)) : i;
        if (!(this.totals[byPixel.get(pixel)] >= this.totals[i])) byPixel.set(pixel, i);
      });
      return [...byPixel.values()];
    }

    bars(values, below, drawn) {
      const width = rounded(Math.max(1, Math.min(96, this.band * (this.band > 6 ? 0.8 : 1))));
      return drawn.filter((i) => values[i]).map((i) => {
        const [low, high] = [this.y(below[i]), this.y(below[i] + values[i])];
        return `M${rounded(this.x(this.spec.at[i]) - width / 2)} ${high}h${width}V${low}h${-width}z`;
      }).join('');
    }

    /** Return the points of a curve from left to right; a value that holds has a corner too. */
    points(values) {
      const points = [];
      let before = null;
      values.forEach((value, i) => {
        if (value === null) return;
        const x = this.x(this.spec.at[i]);
        if (this.spec.holds && before !== null) points.push(`${x} ${before}`);
        before = this.y(value);
        points.push(`${x} ${before}`);
      });
      return points;
    }

    line(values) {
      const points = this.points(values);
      return points.length ? `M${points.join('L')}${points.length > 1 ? '' : 'h2'}` : '';
    }

    area(values, below) {
      const upper = this.points(values.map((value, i) => below[i] + (value ?? 0)));
      return `M${upper.join('L')}L${this.points(below).reverse().join('L')}z`;
    }

    /** Return the index at a pointer. */
    indexAt(event) {
      const { at, holds } = this.spec;
      const x = event.clientX - this.picture.getBoundingClientRect().left;
      if (this.isBars) {
        return Math.max(0, Math.min(at.length - 1, Math.floor((x - this.box.left) / this.band)));
      }
      const next = profkit.firstWhere(0, at.length, (index) => this.x(at[index]) > x);
      const isNext = !holds && next > 0 && next < at.length
        && this.x(at[next]) - x < x - this.x(at[next - 1]);
      return Math.max(0, isNext ? next : next - 1);
    }

    /** Return series and text of the values at a place, the uppermost of a stack first. */
    rows(index) {
      const { series, format } = this.spec;
      const present = series.filter(({ kind, values }) => values[index] !== null
        && (kind === 'line' || values[index]));
      const lines = present.filter(({ kind }) => kind === 'line');
      const stack = present.filter(({ kind }) => kind !== 'line').reverse();

      const rows = [...lines, ...stack].map((shown) => [shown, format(shown.values[index])]);
      const total = stack.length > 1 && !lines.length
        ? [[{ label: 'Total' }, format(this.totals[index])]] : [];
      return [...total, ...rows];
    }

    /** Show the values at a place, and read them out if a key was pressed. */
    point(index, isKey) {
      this.cursor = index;
      const { left, right, top, bottom } = this.box;
      const { name, at } = this.spec;
      const x = Math.min(right, Math.max(left, this.x(at[index])));
      this.mark.setAttribute('d', `M${x} ${top}V${bottom}`);

      const rows = this.rows(index);
      if (isKey) {
        const texts = rows.map(([{ label }, text]) => `${label} ${text}`);
        this.status.textContent = `${name(index)}: ${texts.join(', ') || 'nothing'}`;
      }

      const list = profkit.element('dl', {}, rows.slice(0, maxTipRows)
        .map(([{ label, color, isIdle }, text]) => [
          profkit.element('dt', {}, color && profkit.element('i', {
            class: isIdle ? 'swatch idle' : 'swatch', style: `--color: var(${color})` }), label),
          profkit.element('dd', {}, text)]).flat());
      const more = rows.length - maxTipRows;
      this.tip.replaceChildren(profkit.element('b', {}, name(index)), list,
        ...(more > 0 ? [`and ${more} more`] : []));
      this.tip.hidden = false;

      // To the right of the place if there is room, else to the left.
      const room = this.width - this.tip.offsetWidth - 4;
      const isLeft = x + 14 > room && x - 14 - this.tip.offsetWidth > 0;
      this.tip.style.left = `${isLeft ? x - 14 - this.tip.offsetWidth
        : Math.max(0, Math.min(x + 14, room))}px`;
      this.tip.style.top = `${top}px`;
    }

    hide() {
      this.tip.hidden = true;
      this.mark.setAttribute('d', '');
    }

    /** Mark a span of places, or none. */
    showSpan(span) {
      this.span = span;
      if (!this.width) return;
      const [from, to] = span ? span.map((index) => this.x(this.spec.at[index])) : [0, 0];
      this.chosen.setAttribute('x', from);
      this.chosen.setAttribute('width', span ? Math.max(2, to - from) : 0);
    }

    /** Mark the places between two, in any order, and say so; none if they are the same. */
    select(from, to) {
      const before = String(this.span);
      this.showSpan(from === to ? null : [Math.min(from, to), Math.max(from, to)]);
      if (String(this.span) !== before) this.spec.onSpan(this.span);
    }

    listen() {
      const { place, picture } = this;
      let start = null;
      picture.addEventListener('pointerdown', (event) => {
        if (event.button !== 0) return;
        start = this.indexAt(event);
        if (event.pointerType === 'mouse') picture.setPointerCapture(event.pointerId);
      });
      picture.addEventListener('pointermove', (event) => {
        const index = this.indexAt(event);
        this.point(index, false);
        if (start !== null && this.spec.onSpan) this.select(start, index);
      });
      picture.addEventListener('pointerup', (event) => {
        if (start === null) return;
        const index = this.indexAt(event);
        if (this.spec.onSpan) this.select(start, index);
        else this.spec.onSelect?.(index);
        start = null;
      });
      picture.addEventListener('pointercancel', () => { start = null; });
      picture.addEventListener('pointerleave', () => this.hide());
      place.addEventListener('blur', () => this.hide());
      place.addEventListener('keydown', (event) => this.onKey(event));
    }

    onKey(event) {
      if (event.target !== this.place || event.ctrlKey || event.metaKey || event.altKey) return;
      const last = this.spec.at.length - 1;
      const from = this.cursor ?? -1;
      const places = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last };
      if (event.key in places) {
        const index = Math.max(0, Math.min(last, places[event.key]));
        const isSpan = event.shiftKey && this.spec.onSpan;
        if (isSpan) this.extend(Math.max(from, 0), index);
        this.point(index, !isSpan);
      } else if (event.key === 'Enter' && this.cursor !== null && this.spec.onSelect) {
        this.spec.onSelect(this.cursor);
      } else if (event.key === 'Escape') {
        this.hide();
        if (this.span) this.select(0, 0);
      } else return;
      event.preventDefault();
    }

    /** Move the end of the selected span that is at the cursor. */
    extend(from, to) {
      const [low, high] = this.span ?? [from, from];
      this.select(from === low ? high : low, to);
    }
  }

  // What was in a closed element has no width until then.
  window.addEventListener('beforeprint', () => {
    for (const [place, chart] of charts) chart.fit(place.clientWidth);
  });

  /** Draw a chart in an element with an id and a label; returns what `Chart.update` changes. */
  return (place, spec) => {
    const chart = new Chart(place, spec);
    charts.set(place, chart);
    sizes.observe(place);
    return chart;
  };
})();
