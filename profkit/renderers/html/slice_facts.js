'use strict';
/** The facts about a slice, for the tooltip and for the details below the timeline. */
profkit.SliceFacts = class {
  constructor({ sites, styles }) {
    this.sites = sites;
    this.styles = styles;
  }

  /** Return the name of a slice, or the number of events that it merges. */
  title(level, index) {
    const n = level.n[index];
    return n > 1 ? `${profkit.formatCount(n)} events` : this.text('name', level.site[index]);
  }

  text(column, site) {
    return this.sites.texts[this.sites[column][site]];
  }

  /** Return the facts as pairs of a label and a value. */
  of(level, index) {
    const site = level.site[index];
    const [op, line, module] = ['op', 'place', 'module']
      .map((column) => (this.sites[column] ? this.text(column, site) : ''));
    return [
      ...this.durations(level, index),
      ['Start', profkit.formatNs(level.start[index])],
      ['Kind', `${this.styles[this.sites.style[site]].label}${this.pathNote(site)}`],
      ...(op ? [['Launched by', op]] : []),
      ...(line ? [['Line', line]] : []),
      ...(module ? [['Module', module]] : []),
      ['Total', `${profkit.formatNs(this.sites.totalNs[site])} in `
        + `${profkit.formatCount(this.sites.n[site])} events of this name, line, module and operator`],
    ];
  }

  /** Return what tells a segment of the critical path from the event that it is a part of. */
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

  /** Return facts as a definition list. */
  list(facts) {
    return profkit.element('dl', {}, facts.flatMap(([label, value]) => [
      profkit.element('dt', {}, label), profkit.element('dd', {}, value),
    ]));
  }

  /** Return elements with the sums of an area, from {@link profkit.slices.sums}. */
  sums(area, spanNs, lanes, nNames = 12) {
    const { formatNs, formatCount, formatShare, element } = profkit;
    const about = area.isAbout ? 'about ' : '';

    // Sites are names at a line: the table has one row for a name.
    const byName = new Map();
    for (const [site, ofSite] of area.bySite) {
      const name = site < 0 ? 'merged short events' : this.text('short', site);
      const sum = byName.get(name) ?? { n: 0, totalNs: 0, longestNs: 0 };
      byName.set(name, sum);
      sum.n += ofSite.n;
      sum.totalNs += ofSite.totalNs;
      sum.longestNs = Math.max(sum.longestNs, ofSite.longestNs);
    }

    const names = [...byName].sort(([, a], [, b]) => b.totalNs - a.totalNs);
    const head = ['Name', 'Events', 'Total', 'Mean', 'Longest'];
    const rows = names.slice(0, nNames).map(([name, { n, totalNs, longestNs }]) => element('tr', {},
      element('th', { scope: 'row' }, name),
      [formatCount(n), formatNs(totalNs), formatNs(n ? totalNs / n : 0), formatNs(longestNs)]
        .map((text) => element('td', {}, text))));
    const nMore = names.length - rows.length;

    return [
      this.list([
        ['Selected', `${formatNs(spanNs)} of ${lanes}`],
        ['Events', `${about}${formatCount(area.n)}`],
        ['Total', `${about}${formatNs(area.totalNs)} within the area; nested events count each`],
        ['Busy', `${about}${formatNs(area.busyNs)}, ${formatShare(area.busyNs / spanNs)} of the `
          + 'area, in which any event runs'],
      ]),
      element('table', {},
        element('thead', {}, element('tr', {},
          head.map((text) => element('th', { scope: 'col' }, text)))),
        element('tbody', {}, rows)),
      nMore ? element('p', { class: 'muted' }, `and ${formatCount(nMore)} more names`) : '',
    ];
  }
};
