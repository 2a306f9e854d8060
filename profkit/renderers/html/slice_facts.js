'use strict';
/** The facts about a slice, for the tooltip and for the details below the timeline. */
profkit.SliceFacts = class {
  constructor({ sites, styles }) {
    this.sites = sites;
    this.styles = styles;
  }

  /** The name of a slice, or the number of events that it merges. */
  title(level, index) {
    const n = level.n[index];
    return n > 1 ? `${profkit.formatCount(n)} events` : this.text('name', level.site[index]);
  }

  text(column, site) {
    return this.sites.texts[this.sites[column][site]];
  }

  /** The facts as pairs of a label and a value. */
  of(level, index) {
    const site = level.site[index];
    const [op, line] = [this.text('op', site), this.text('place', site)];
    return [
      ...this.durations(level, index),
      ['Start', profkit.formatNs(level.start[index])],
      ['Kind', `${this.styles[this.sites.style[site]].label}${this.pathNote(site)}`],
      ...(op ? [['Launched by', op]] : []),
      ...(line ? [['Line', line]] : []),
      ['Total', `${profkit.formatNs(this.sites.totalNs[site])} in `
        + `${profkit.formatCount(this.sites.n[site])} events of this name, line and operator`],
    ];
  }

  /** What distinguishes a segment of the critical path from the event that it is a part of. */
  pathNote(site) {
    return this.sites.isPath[site] ? ', on the critical path' : '';
  }

  durations(level, index) {
    const duration = level.end[index] - level.start[index];
    if (level.n[index] === 1) return [['Duration', profkit.formatNs(duration)]];
    const longest = this.text('name', level.site[index]);
    return [
      ['Merged', level.isFinest ? 'to limit the size of the page' : 'zoom in to see each event'],
      ['Busy', `${profkit.formatNs(level.busy[index])} of ${profkit.formatNs(duration)}`],
      ['Longest', `${longest}, ${profkit.formatNs(level.longest[index])}`],
    ];
  }

  /** Facts as a definition list. */
  list(facts) {
    return profkit.element('dl', {}, facts.flatMap(([label, value]) => [
      profkit.element('dt', {}, label), profkit.element('dd', {}, value),
    ]));
  }
};
