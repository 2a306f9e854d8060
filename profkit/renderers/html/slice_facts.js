'use strict';
/** What is said of a slice, in the hint beside the pointer and below the timeline. */
profkit.SliceFacts = class {
  constructor({ sites, looks }) {
    this.sites = sites;
    this.samples = looks;
  }

  /** The name of a slice, or how many events it holds. */
  title(level, place) {
    const n = level.n[place];
    if (n > 1) return `${profkit.formatCount(n)} events`;
    return this.text('name', level.site[place]);
  }

  text(column, site) {
    return this.sites.texts[this.sites[column][site]];
  }

  /** What a slice is, as pairs of a word and its value. */
  of(level, place) {
    const site = level.site[place];
    const [op, line] = [this.text('op', site), this.text('place', site)];
    return [
      ...this.lengths(level, place),
      ['Starts at', profkit.formatNs(level.start[place])],
      ['Kind', this.samples[this.sites.look[site]].label],
      ...(op ? [['Launched by', op]] : []),
      ...(line ? [['Line', line]] : []),
      ['In all', `${profkit.formatCount(this.sites.n[site])} of this name, line and operator, `
        + `${profkit.formatNs(this.sites.totalNs[site])} together`],
    ];
  }

  lengths(level, place) {
    const length = level.end[place] - level.start[place];
    if (level.n[place] === 1) return [['Length', profkit.formatNs(length)]];
    const longest = this.text('name', level.site[place]);
    return [
      ['Too short to be told apart here', 'zoom in to see each'],
      ['Busy', `${profkit.formatNs(level.busy[place])} of ${profkit.formatNs(length)}`],
      ['Longest', `${longest}, ${profkit.formatNs(level.longest[place])}`],
    ];
  }

  /** Pairs as a list of terms. */
  list(pairs) {
    const items = pairs.flatMap(([word, value]) => [
      profkit.element('dt', {}, word), profkit.element('dd', {}, value),
    ]);
    return profkit.element('dl', {}, ...items);
  }
};
