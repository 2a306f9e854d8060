'use strict';
/**
 * Timelines: drawing, lanes' names, pointer, keyboard and links of the page. A section has at most
 * one, whose elements have the section's id as prefix.
 */
(() => {
  const overviewHeight = 34;
  const rulerHeight = 22;
  const maxOverviewRanks = 6;
  const maxOverviewStreams = 3;
  /** The visible range is written once it has settled, so that screen readers hear it once. */
  const settledMs = 250;
  /** An area that is hardly higher than this is of all lanes: a finger rarely moves down as well. */
  const flatPx = 4;
  /** How far from a slice the pointer still hits it, and how far it moves at least for a range. */
  const nearPx = 3;
  /** How much is shown before and after a finding, as a multiple of its length. */
  const contextShare = 1;
  const keysHelp = [
    ['W S', 'zoom in and out at the pointer'],
    ['A D', 'pan to the left and right'],
    ['← → ↑ ↓', 'pan and scroll'],
    ['+ −', 'zoom'],
    ['0 Home', 'show all'],
    ['Shift ← → ↑ ↓', 'select the slice beside, above or below'],
    ['Enter F', 'zoom to the selection'],
    ['G', 'go from a launch to what it launched, and back'],
    ['M', 'sum the visible range, or the range of the selected slice'],
    ['Space', 'open or close the lane of the selected slice'],
    ['N P', 'next and previous match of the search'],
    ['] [', 'next and previous finding'],
    ['/', 'search'],
    ['Esc', 'clear the selection'],
    ['drag', 'pan'],
    ['Ctrl wheel', 'zoom'],
    ['Shift drag', 'sum an area; a flat one, or one on the ruler without Shift, is of all lanes'],
  ];

  class Timeline {
    /** @param {HTMLElement} section */
    constructor(section) {
      const part = (name) => document.getElementById(`${section.id}-${name}`);
      const root = part('view');
      const [lanes, canvas, ruler, overview, tip] = ['lanes', 'slices', 'ruler', 'overview',
        'slice-tip'].map((name) => root.querySelector(`.${name}`));
      Object.assign(this, { section, part, root, lanes, canvas, ruler, overview, tip });

      const { timeline: recorded } = profkit.data(section.id);
      this.recorded = recorded;
      this.layout = new profkit.lanes.Layout(recorded.lanes);
      this.colors = new profkit.SliceColors(recorded);
      this.isFrameRequested = false;
      this.rangeTimer = null;
      this.pointerNs = null;
      this.range = new profkit.TimeRange(
        { from: recorded.startNs, to: Math.max(recorded.endNs, recorded.startNs + 1) },
        () => this.draw());
      this.levels = new profkit.slices.Levels(recorded, () => this.draw());
      this.selection = new profkit.SliceSelection(this, part('details'));
      this.search = new profkit.SliceSearch(this, {
        field: part('search'), found: part('found'), steppers: [part('previous'), part('next')],
      });
      this.findings = new profkit.FindingSteps(this, part('findings'));
      this.held = new profkit.HeldKeys(
        this.range, () => (this.isPointerVisible ? this.pointerNs : undefined));

      this.listenToKeys();
      this.listenToPointer();
      this.listenToRuler();
      this.listenToControls();
      this.listenToPage();
      this.drawNames();
      this.drawLegend();
    }

    /** The width of the slices, without the lanes' names. */
    get width() {
      return Math.max(50, this.canvas.clientWidth);
    }

    get pixelNs() {
      return this.range.span / this.width;
    }

    /** The slices as they are drawn at this zoom, or undefined until they are decoded. */
    get level() {
      return this.levels.at(this.pixelNs);
    }

    get isPointerVisible() {
      return this.pointerNs !== null && this.range.contains(this.pointerNs);
    }

    /** Draw in the next frame, once for all changes until then. */
    draw() {
      if (this.isFrameRequested) return;
      this.isFrameRequested = true;
      requestAnimationFrame(() => this.paint());
    }

    paint() {
      this.isFrameRequested = false;
      const { range, layout, colors, selection, root, level } = this;
      const view = { from: range.from, to: range.to };
      if (!level) {
        if (this.levels.failed) {
          this.part('range').textContent = 'This browser cannot decompress the timeline.';
        }
        return;
      }

      const size = { width: this.width, height: this.lanes.clientHeight };
      const state = { layout, level, sites: this.recorded.sites, colors, view, size,
        selected: selection.slice, arrows: selection.arrows, area: selection.area };
      this.canvas.style.height = `${size.height}px`;
      profkit.lanes.drawSlices(this.canvas, {
        ...state, matches: this.search.occurrences, scroll: this.lanes.scrollTop,
      });
      profkit.lanes.drawRuler(this.ruler, view, this.ruler.clientWidth, rulerHeight);
      profkit.lanes.drawOverview(this.overview, {
        ...state, whole: range.whole, rows: this.overviewRows(),
        level: this.levels.at((range.whole.to - range.whole.from) / size.width),
        size: { width: this.overview.clientWidth, height: overviewHeight },
      });

      Object.assign(root.dataset, {
        from: String(view.from), to: String(view.to), resolution: String(level.resolutionNs),
      });
      if (!performance.getEntriesByName('profkit:timeline').length) {
        performance.mark('profkit:timeline');
      }
      this.announceRange();
    }

    /** Return the rows of the overview: ranks, or steps and streams, or without a device a thread. */
    overviewRows() {
      const { lanes, steps } = this.recorded;
      // The first row of a thread with steps has only the steps.
      const firstRows = (kind) => lanes.filter((lane) => lane.kind === kind)
        .map((lane) => lane.firstRow + (kind === 'thread' && steps.length && lane.nRows > 1 ? 1 : 0));
      const ranks = firstRows('rank').slice(0, maxOverviewRanks);
      const streams = firstRows('stream').slice(0, maxOverviewStreams);
      if (ranks.length) return ranks;
      return [...firstRows('steps'),
        ...(streams.length ? streams : firstRows('thread').slice(0, 1))];
    }

    announceRange() {
      const { span, from, whole } = this.range;
      const text = `${profkit.formatNs(span)} of ${profkit.formatNs(whole.to - whole.from)}, `
        + `from ${profkit.formatNs(from)}`;
      clearTimeout(this.rangeTimer);
      this.rangeTimer = setTimeout(() => { this.part('range').textContent = text; }, settledMs);
    }

    /** Draw the names of the lanes, as buttons where a lane can expand. */
    drawNames() {
      // The canvas is as high as the visible part, and stays in it while this element scrolls.
      this.root.querySelector('.all-lanes').style.height = `${this.layout.height + 2}px`;
      this.root.querySelector('.lane-names').replaceChildren(
        ...this.recorded.lanes.map((lane, index) => this.makeName(lane, index)));
    }

    makeName(lane, index) {
      const canOpen = this.layout.canOpen(index);
      const busy = lane.kind === 'rank' ? '' : `, busy ${profkit.formatNs(lane.busyNs)}`;
      const title = `${lane.label}: ${profkit.formatCount(lane.n)} events${busy}`;
      const name = profkit.element(canOpen ? 'button' : 'span',
        { class: 'lane-name', title, ...(canOpen ? { type: 'button', tabindex: '-1' } : {}) },
        lane.label);
      if (canOpen) {
        name.setAttribute('aria-expanded', String(this.layout.isOpen[index]));
        name.addEventListener('click', () => this.toggle(index));
      }
      name.style.top = `${this.layout.top[index]}px`;
      name.style.height = `${profkit.lanes.laneHeight - 4}px`;
      return name;
    }

    drawLegend() {
      this.part('styles').replaceChildren(
        ...this.colors.legend().map(({ label, color, pattern }) => (
          profkit.element('li', {},
            color
              && profkit.element('i', { class: `swatch ${pattern}`, style: `--color: ${color}` }),
            label))));
    }

    /** Expand a lane to all its rows, or collapse it. */
    toggle(index) {
      this.layout.toggle(index);
      this.drawNames();
      this.draw();
    }

    /** Expand the lane of a row that is not visible. */
    reveal(row) {
      const lane = this.layout.laneOf(row);
      const isVisible = row - this.recorded.lanes[lane].firstRow < this.layout.nVisible(lane);
      if (!isVisible) this.toggle(lane);
    }

    focus() {
      this.lanes.focus({ preventScroll: true });
    }

    scrollRows(n) {
      this.lanes.scrollTop += n * profkit.lanes.rowHeight;
    }

    scrollTo(row) {
      const y = this.layout.yOf(row);
      if (y < this.lanes.scrollTop) this.lanes.scrollTop = y;
      const below = y + profkit.lanes.rowHeight - this.lanes.clientHeight;
      if (below > this.lanes.scrollTop) this.lanes.scrollTop = below;
    }

    /** Scroll to the lane that a text names, such as `rank 12`; returns its name, or null. */
    scrollToLane(text) {
      const index = this.recorded.lanes.findIndex(({ label }) => (
        `${label} `.toLowerCase().startsWith(`${text} `)));
      if (index < 0) return null;
      this.lanes.scrollTop = this.layout.top[index];
      return this.recorded.lanes[index].label;
    }

    /** Return the moment at a horizontal position of the window. */
    nsAt(clientX) {
      return this.range.from + (clientX - this.canvas.getBoundingClientRect().left) * this.pixelNs;
    }

    /** Return the height in all lanes at a vertical position of the window. */
    heightAt(clientY) {
      return clientY - this.canvas.getBoundingClientRect().top + this.lanes.scrollTop;
    }

    /** Return the row under the pointer or null, and the index of the slice in it or -1. */
    hit(event) {
      const { level } = this;
      const row = this.layout.rowAt(this.heightAt(event.clientY));
      const ns = this.nsAt(event.clientX);
      if (!row || !level || ns < this.range.from) return { level, row: null, index: -1, ns };
      const index = profkit.slices.sliceAt(level, row.row, ns, nearPx * this.pixelNs);
      return { level, row: row.row, index, ns };
    }

    showTip(event) {
      const { level, index, ns } = this.hit(event);
      const { facts } = this.selection;
      this.pointerNs = ns;
      if (index < 0) {
        this.hideTip();
        return;
      }
      this.tip.replaceChildren(profkit.element('b', {}, facts.title(level, index)),
        facts.list(facts.of(level, index)));
      profkit.canvas.showTip(this.tip, this.root.getBoundingClientRect(), event);
    }

    hideTip() {
      this.tip.hidden = true;
    }

    listenToKeys() {
      const { range, selection, search, findings, held, layout } = this;
      const actions = {
        ArrowLeft: () => range.pan(-0.15),
        ArrowRight: () => range.pan(0.15),
        ArrowUp: () => this.scrollRows(-3),
        ArrowDown: () => this.scrollRows(3),
        '+': () => range.zoom(0.6),
        '=': () => range.zoom(0.6),
        '-': () => range.zoom(1 / 0.6),
        0: () => range.showAll(),
        Home: () => range.showAll(),
        Enter: () => selection.zoom(),
        f: () => selection.zoom(),
        g: () => selection.goAlong(),
        m: () => selection.sum(),
        n: () => search.step(true),
        p: () => search.step(false),
        ']': () => findings.step(true),
        '[': () => findings.step(false),
        ' ': () => this.toggle(selection.slice ? layout.laneOf(selection.slice.row) : 0),
        Escape: () => selection.clear(),
      };
      const shifted = {
        ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
      };

      document.addEventListener('keydown', (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || profkit.keys.isTyping(event)) {
          held.release(); // some systems tell no release of a key while another is held
          return;
        }
        const isHere = event.target === this.lanes
          || (event.target === document.body && this.root.matches(':hover'));
        if (!isHere) return;
        const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
        const adjacent = event.shiftKey ? shifted[key] : undefined;
        if (adjacent) selection.selectAdjacent(...adjacent);
        else if (held.has(key)) held.press(key, event.repeat);
        else if (actions[key]) actions[key]();
        else return;
        event.preventDefault();
      });
      profkit.keys.add({ root: this.section, title: this.lanes.getAttribute('aria-label'),
        search: search.field, keys: keysHelp });
    }

    listenToPointer() {
      const { canvas, lanes, range, selection } = this;
      const areas = this.root.querySelector('[data-areas]');
      areas.addEventListener('click', () => {
        const isOn = areas.ariaPressed !== 'true';
        areas.ariaPressed = String(isOn);
        canvas.style.touchAction = isOn ? 'none' : '';
      });

      profkit.onDrags(canvas, {
        view: () => ({ from: range.from, to: range.to }),
        show: (from, to) => range.show(from, to),
        scroller: lanes,
        onStart: () => this.hideTip(),
        isArea: (event) => event.shiftKey || areas.ariaPressed === 'true',
        onArea: (first, now, isFinal) => {
          const isFlat = Math.abs(now.clientY - first.clientY) < flatPx;
          const [top, bottom] = isFlat ? [0, this.layout.height]
            : [this.heightAt(first.clientY), this.heightAt(now.clientY)];
          selection.mark(
            this.nsAt(first.clientX), this.nsAt(now.clientX), top, bottom, isFinal);
        },
        onClick: (event) => {
          const { level, row, index } = this.hit(event);
          selection.select(level, row, index);
        },
      });
      canvas.addEventListener('pointermove', (event) => {
        if (!event.buttons) this.showTip(event);
      });
      canvas.addEventListener('pointerleave', () => {
        this.pointerNs = null;
        this.hideTip();
      });
      canvas.addEventListener('dblclick', () => selection.zoom());
      lanes.addEventListener('scroll', () => {
        this.hideTip();
        this.draw();
      });
      lanes.addEventListener('wheel', (event) => {
        const ns = this.nsAt(event.clientX);
        if (event.ctrlKey || event.metaKey) range.zoom(1.0015 ** event.deltaY, ns);
        else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          range.pan((event.deltaX || event.deltaY) / this.width);
        } else return;
        event.preventDefault();
      }, { passive: false });
    }

    /** Follow the pointer from a press until it is released. */
    follow(element, onMove) {
      let first = null;
      element.addEventListener('pointerdown', (event) => {
        if (event.button !== 0 || !event.isPrimary) return;
        first = this.nsAt(event.clientX);
        element.setPointerCapture(event.pointerId);
        onMove(event, first, false);
      });
      element.addEventListener('pointermove', (event) => {
        if (first !== null && event.isPrimary) onMove(event, first, false);
      });
      element.addEventListener('pointerup', (event) => {
        if (first !== null && event.isPrimary) onMove(event, first, true);
      });
      // It follows a release, and a pointer that the system took away.
      element.addEventListener('lostpointercapture', () => { first = null; });
    }

    /** Move the range on the overview, and mark one on the ruler. */
    listenToRuler() {
      const { range, overview } = this;
      this.follow(overview, (pointer) => {
        const { whole, span } = range;
        const box = overview.getBoundingClientRect();
        const ns = whole.from
          + ((pointer.clientX - box.left) / box.width) * (whole.to - whole.from);
        range.show(ns - span / 2, ns + span / 2);
      });
      this.follow(this.ruler, (pointer, first, isFinal) => {
        const now = this.nsAt(pointer.clientX);
        if (Math.abs(now - first) < nearPx * this.pixelNs) return;
        this.selection.mark(first, now, 0, this.layout.height, isFinal);
      });
    }

    listenToControls() {
      const { range } = this;
      for (const button of this.section.querySelectorAll('[data-zoom]')) {
        button.addEventListener('click', () => {
          if (button.dataset.zoom === 'all') range.showAll();
          else range.zoom(button.dataset.zoom === 'in' ? 0.5 : 2, undefined, true);
        });
      }

      const steps = this.part('step');
      steps?.addEventListener('change', () => {
        const step = this.recorded.steps[steps.value];
        if (step && steps.value !== '') range.show(step.startNs, step.endNs, true);
        else range.showAll();
      });

      this.part('colors')?.addEventListener('change', ({ target }) => {
        this.colors.choose(target.value);
        this.drawLegend();
        this.draw();
      });
    }

    /** Show a time range with what is around it, and offer a way back to the button. */
    async showOnRequest({ startNs, endNs, label, from }) {
      const { range, root, findings } = this;
      const before = { from: range.from, to: range.to };
      const marginNs = findings.optionOf(label) ? (endNs - startNs) * contextShare : 0;
      range.show(startNs - marginNs, endNs + marginNs, true);
      root.closest('figure, section').scrollIntoView({ block: 'start' });
      this.focus();

      this.offerWayBack(from, before);
      await findings.choose(label, startNs);
    }

    /** Offer a button that leads back to an element, with the range as it was. */
    offerWayBack(element, before) {
      const line = this.part('back');
      line.hidden = element === null;
      line.querySelector('button').onclick = () => {
        line.hidden = true;
        this.selection.clear();
        this.findings.forget();
        this.range.show(before.from, before.to);
        profkit.reveal(element);
        element.scrollIntoView({ block: 'center' });
        element.focus({ preventScroll: true });
      };
    }

    listenToPage() {
      const { root, lanes } = this;
      window.addEventListener('profkit:range', ({ detail }) => {
        if (detail.timeline === this.section.id) this.showOnRequest(detail);
      });
      window.addEventListener('profkit:theme', () => {
        this.drawLegend();
        this.draw();
      });

      // A printed canvas cannot be drawn again: it is drawn with the width and colours of the paper.
      const paintNow = () => {
        this.drawNames();
        this.paint();
      };
      window.addEventListener('beforeprint', () => {
        root.dataset.printed = '';
        lanes.style.height = `${lanes.clientHeight}px`;
        paintNow();
      });
      window.addEventListener('afterprint', () => {
        delete root.dataset.printed;
        lanes.style.height = '';
        paintNow();
      });
      new ResizeObserver(() => {
        this.drawNames();
        this.draw();
      }).observe(lanes);
    }
  }

  for (const view of document.querySelectorAll('.timeline')) {
    new Timeline(view.closest('section'));
  }
})();
