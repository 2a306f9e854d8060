'use strict';
/** What is selected on a timeline, a slice or an area, and its description below the lanes. */
profkit.SliceSelection = (() => {
  const maxArrows = 200;
  const maxLinks = 12;
  const minMarginNs = 20;

  function action(label, does) {
    const button = profkit.element('button', { type: 'button' }, label);
    button.addEventListener('click', does);
    return button;
  }

  /** Return the row of a slice; rows without slices begin where the next one does. */
  const rowOf = ({ first }, slice) => profkit.firstWhere(
    0, first.length, (row) => first[row] > slice) - 1;

  return class SliceSelection {
    /**
     * @param {Timeline} timeline
     * @param {HTMLElement} details where the selection is described
     */
    constructor(timeline, details) {
      const { recorded } = timeline;
      this.timeline = timeline;
      this.details = details;
      this.recorded = recorded;
      this.facts = new profkit.SliceFacts(recorded);
      this.eventArguments = new profkit.SliceArguments(recorded);
      this.forget();
    }

    forget() {
      this.slice = null;
      this.area = null;
      this.arrows = [];
    }

    clear() {
      this.forget();
      this.details.replaceChildren();
      this.timeline.draw();
    }

    /** Select a slice, and describe it; its arguments follow when they are decoded. */
    async select(level, row, index) {
      this.clear();
      if (index < 0) return;
      const slice = { row, start: level.start[index], end: level.end[index] };
      this.slice = slice;
      const lane = this.recorded.lanes[this.timeline.layout.laneOf(row)];
      const actions = profkit.element('p', { class: 'actions' },
        action('Zoom in', () => this.zoom()), action('Sum its range', () => this.sum()));
      const describe = (...more) => this.details.replaceChildren(
        profkit.element('h3', {}, this.facts.title(level, index)),
        profkit.element('div', { class: 'columns' },
          this.facts.list([['Lane', lane.label], ...this.facts.of(level, index)]), ...more),
        actions);
      describe();

      // Only single recorded events have arguments, which are those of slices of the finest level.
      if (level.n[index] > 1 || !lane.hasEvents) return;
      const [finest] = await Promise.all([
        this.timeline.levels.finest(), this.eventArguments.read()]);
      if (this.slice !== slice || !finest) return;
      const place = profkit.slices.sliceAt(finest, row, (slice.start + slice.end) / 2, 1);
      if (finest.start[place] !== slice.start || finest.n[place] > 1) return;

      slice.place = place;
      const pairs = this.eventArguments.of(place);
      if (pairs.length) {
        describe(profkit.element(
          'div', {}, profkit.element('h4', {}, 'Arguments'), this.facts.list(pairs)));
      }
      this.link(finest, place, actions);
      this.timeline.draw();
    }

    /** Draw arrows from a launch to its kernels, and add buttons that go to the other end. */
    link(finest, place, actions) {
      const launch = this.eventArguments.launchOf(place);
      const launched = this.eventArguments.launchedBy(place);
      const at = (slice) => ({ row: rowOf(finest, slice), start: finest.start[slice], slice });
      this.arrows = [
        ...(launch < 0 ? [] : [[at(launch), at(place)]]),
        ...launched.slice(0, maxArrows).map((slice) => [at(place), at(slice)]),
      ];
      this.slice.linked = launch < 0 ? launched : [launch];

      const go = (slice, label) => action(`${label}: ${this.facts.title(finest, slice)}`,
        () => this.goTo(finest, slice));
      actions.append(
        ...(launch < 0 ? [] : [go(launch, 'Launch')]),
        ...launched.slice(0, maxLinks).map((slice) => go(slice, 'Launched')));
      const nMore = launched.length - maxLinks;
      if (nMore > 0) actions.append(` and ${profkit.formatCount(nMore)} more`);
    }

    /** Select a slice of the finest level, and show it: at this zoom if it is wide enough. */
    goTo(level, index) {
      const row = rowOf(level, index);
      this.timeline.reveal(row);
      this.select(level, row, index);

      const { range } = this.timeline;
      const [start, end] = [level.start[index], level.end[index]];
      if (end - start > range.span || (end - start) / this.timeline.pixelNs < 12) this.zoom(2);
      else if (start < range.from || end > range.to) {
        range.show(start - range.span / 3, start + range.span * (2 / 3), true);
      }
      this.timeline.scrollTo(row);
    }

    /** Select the other end of the first arrow. */
    async goAlong() {
      const finest = await this.timeline.levels.finest();
      if (finest && this.slice?.linked?.length) this.goTo(finest, this.slice.linked[0]);
    }

    /** Select the slice next to, above or below the selected one. */
    selectAdjacent(across, down) {
      const { level, layout, range } = this.timeline;
      if (!level) return;

      const at = layout.rows.findIndex(({ row }) => row === this.slice?.row);
      const { row } = layout.rows[Math.min(Math.max(at + down, 0), layout.rows.length - 1)];
      const ns = this.slice ? (this.slice.start + this.slice.end) / 2 : range.from;
      let index = profkit.slices.sliceAt(level, row, ns, range.whole.to - range.whole.from);
      if (this.slice) index += across;
      if (index < level.first[row] || index >= level.first[row + 1]) return;

      this.select(level, row, index);
      if (level.start[index] < range.from || level.end[index] > range.to) {
        const start = level.start[index] - range.span / 4;
        range.show(start, start + range.span);
      }
      this.timeline.scrollTo(row);
    }

    /**
     * Select the next occurrence after the selected slice, or the one before it.
     *
     * @returns {string | null} its number among all, or null after the last one
     */
    step(occurrences, isForward) {
      const none = isForward ? -Infinity : Infinity;
      const next = occurrences.next(this.slice?.start ?? none, this.slice?.place ?? none, isForward);
      if (!next) {
        this.clear();
        return null;
      }
      this.goTo(occurrences.level, next.index);
      this.slice.place = next.index;
      return `${profkit.formatCount(occurrences.rank(next))} of `
        + `${profkit.formatCount(occurrences.n)}`;
    }

    /**
     * Select the occurrence that begins at a moment, without moving what is shown.
     *
     * @returns {string} its number among all, or their number if none begins then
     */
    selectAt(occurrences, ns) {
      const next = occurrences.next(ns, -1, true);
      const n = profkit.formatCount(occurrences.n);
      if (!next || occurrences.level.start[next.index] !== ns) return n;
      this.timeline.reveal(next.row);
      this.select(occurrences.level, next.row, next.index);
      this.slice.place = next.index;
      return `${profkit.formatCount(occurrences.rank(next))} of ${n}`;
    }

    /** Show the selected slice or area with a margin, which is a multiple of its length. */
    zoom(margin = 0.1) {
      const shown = this.slice ? { from: this.slice.start, to: this.slice.end } : this.area;
      if (!shown) return;
      const marginNs = Math.max((shown.to - shown.from) * margin, minMarginNs);
      this.timeline.range.show(shown.from - marginNs, shown.to + marginNs, true);
    }

    /** Mark an area, and sum what is in it once it does not change any more. */
    mark(from, to, top, bottom, isFinal) {
      if (!this.area) this.clear();
      const { whole } = this.timeline.range;
      this.area = {
        from: Math.max(Math.min(from, to), whole.from), to: Math.min(Math.max(from, to), whole.to),
        top: Math.min(top, bottom), bottom: Math.max(top, bottom),
      };
      this.timeline.draw();
      if (isFinal) this.sumArea();
    }

    /** Sum the range of the selected slice, or the visible one, over all lanes. */
    sum() {
      const { range, layout } = this.timeline;
      const [from, to] = this.slice
        ? [this.slice.start, this.slice.end] : [range.from, range.to];
      this.mark(from, to, 0, layout.height, true);
    }

    /** Sum an area: recorded events, or if it has no lane of them, all other slices. */
    async sumArea() {
      const { area, recorded } = this;
      const finest = await this.timeline.levels.finest();
      if (!finest || this.area !== area) return;

      const rows = this.timeline.layout.rowsWithin(area.top, area.bottom);
      const recordedRows = rows.filter(({ lane }) => recorded.lanes[lane].hasEvents);
      const summed = recordedRows.length ? recordedRows : rows;
      const inLanes = new Set(summed.map(({ lane }) => recorded.lanes[lane].label));
      const label = inLanes.size === 1 ? [...inLanes][0] : `${inLanes.size} lanes`;
      const sums = profkit.slices.sums(
        finest, summed.map(({ row }) => row), area.from, area.to);

      this.details.replaceChildren(
        profkit.element('h3', {}, 'Area'),
        ...this.facts.sums(sums, Math.max(1, area.to - area.from), label),
        profkit.element('p', { class: 'actions' }, action('Zoom in', () => this.zoom()),
          action('Clear', () => this.clear())),
      );
    }
  };
})();
