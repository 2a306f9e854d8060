'use strict';
/** Slices that a text or a finding has: their sum, and steps from one to the next. */

/** Return the rows of the lanes that are wanted. */
profkit.rowsOfLanes = (lanes, isWanted) => lanes.filter(isWanted).flatMap(
  ({ firstRow, nRows }) => Array.from({ length: nRows }, (_, i) => firstRow + i));

profkit.SliceSearch = (() => {
  const typingMs = 120;

  return class SliceSearch {
    /**
     * @param {Timeline} timeline
     * @param {{field: HTMLInputElement, found: HTMLElement, steppers: HTMLButtonElement[]}} elements
     *   where the text is typed, where the result is written, and the buttons to the previous and
     *   the next match
     */
    constructor(timeline, elements) {
      Object.assign(this, elements);
      this.timeline = timeline;
      this.matches = null;
      this.timer = null;

      this.field.addEventListener('input', () => this.find());
      this.field.addEventListener('keydown', (event) => {
        if (event.key === 'Enter') this.step(!event.shiftKey);
        if (event.key === 'Escape') timeline.focus();
      });
      this.steppers.forEach((button, index) => {
        button.addEventListener('click', () => this.step(index === 1));
      });
    }

    /** Return the slices that were found, or undefined without a search. */
    get occurrences() {
      return this.matches?.occurrences;
    }

    /** Highlight slices whose name, line, module or operator contains a text, and sum them. */
    find() {
      const text = this.field.value.trim().toLowerCase();
      clearTimeout(this.timer);
      this.matches = null;
      this.found.textContent = '';
      for (const button of this.steppers) button.disabled = true;
      if (text !== '') this.findText(text);
      this.timeline.draw();
    }

    findText(text) {
      const { sites } = this.timeline.recorded;
      const has = sites.texts.map((siteText) => siteText.toLowerCase().includes(text));
      const matching = [...sites.name.keys()].filter((site) => has[sites.name[site]]
        || has[sites.place[site]] || has[sites.op[site]]);

      // Segments of the critical path are parts of events that are counted already.
      const events = matching.filter((site) => !sites.isPath[site]);
      const counted = events.length ? events : matching;
      let [n, totalNs] = [0, 0];
      for (const site of counted) {
        n += sites.n[site];
        totalNs += sites.totalNs[site];
      }

      const sum = `${profkit.formatCount(n)} events, ${profkit.formatNs(totalNs)} total`;
      this.found.textContent = n ? sum : this.timeline.scrollToLane(text) ?? 'no match';
      if (n) {
        // Single events are found once the reader stops typing.
        this.matches = { sum, occurrences: null };
        this.timer = setTimeout(() => this.locate(this.matches, new Set(counted)), typingMs);
      }
    }

    /** Find every single event of a search. */
    async locate(request, matching) {
      const finest = await this.timeline.levels.finest();
      if (!finest || this.matches !== request) return;
      const rows = profkit.rowsOfLanes(this.timeline.recorded.lanes, () => true);
      request.occurrences = new profkit.slices.Occurrences(finest, rows, matching);
      for (const button of this.steppers) button.disabled = request.occurrences.n === 0;
      this.timeline.root.dataset.located = this.field.value;
      this.timeline.draw();
    }

    step(isForward) {
      if (!this.occurrences?.n) return;
      const place = this.timeline.selection.step(this.occurrences, isForward);
      this.found.textContent = place ? `${place}; ${this.matches.sum}`
        : 'no more matches; the next one starts over';
    }
  };
})();

/** Steps through the slices of the findings, or of one of them. */
profkit.FindingSteps = class FindingSteps {
  /**
   * @param {Timeline} timeline
   * @param {HTMLElement} root its list to choose from and its buttons, hidden without findings
   */
  constructor(timeline, root) {
    this.timeline = timeline;
    this.choice = root.querySelector('select');
    this.status = root.querySelector('.found');
    this.rows = profkit.rowsOfLanes(
      timeline.recorded.lanes, ({ kind }) => kind === 'findings');
    this.occurrences = null;
    if (this.rows.length) this.offer(root);
  }

  offer(root) {
    const { sites, styles } = this.timeline.recorded;
    const style = styles.findIndex(({ label }) => label === 'findings');
    const ofFindings = [...sites.name.keys()].filter((site) => sites.style[site] === style);
    if (!ofFindings.length) return;

    root.hidden = false;
    const texts = [...new Set(ofFindings.map((site) => sites.name[site]))];
    this.choice.append(...texts.map((text) => (
      profkit.element('option', { value: String(text) }, sites.texts[text]))));
    this.choice.addEventListener('change', () => {
      this.forgetOccurrences();
      if (this.choice.value !== '') this.step(true);
    });
    for (const button of root.querySelectorAll('[data-step]')) {
      button.addEventListener('click', () => this.step(button.dataset.step === '1'));
    }
  }

  forgetOccurrences() {
    this.occurrences = null;
    this.status.textContent = '';
    this.timeline.selection.clear();
  }

  /** Step through all findings again. */
  forget() {
    this.choice.value = '';
    this.forgetOccurrences();
  }

  /** Return the choice of the finding of a name, or undefined. */
  optionOf(name) {
    return [...this.choice.options].find(({ text }) => text === name);
  }

  /** Choose the finding of a name, and select its slice that begins at a moment. */
  async choose(name, startNs) {
    const option = this.optionOf(name);
    if (!option) return;
    this.choice.value = option.value;
    this.forgetOccurrences();

    const finest = await this.findOccurrences();
    if (finest) this.status.textContent = this.timeline.selection.selectAt(this.occurrences, startNs);
  }

  async step(isForward) {
    if (!this.rows.length || !await this.findOccurrences()) return;
    this.status.textContent = this.timeline.selection.step(this.occurrences, isForward)
      ?? 'no more; the next one starts over';
  }

  /** Find the slices of the chosen findings; returns the level that has them, or null. */
  async findOccurrences() {
    const finest = await this.timeline.levels.finest();
    if (finest && !this.occurrences) {
      const { name } = this.timeline.recorded.sites;
      const chosen = [...name.keys()].filter((site) => (
        this.choice.value === '' || name[site] === Number(this.choice.value)));
      this.occurrences = new profkit.slices.Occurrences(finest, this.rows, new Set(chosen));
    }
    return finest;
  }
};
