'use strict';
/**
 * Stacked bars of time: one for each step or report.
 * @param {HTMLElement} place
 * @param {{axis: string, names: string[], series: object[]}} data
 * @param {(number: number) => void} [onSelect] called with the index of a clicked bar
 */
profkit.stacked = (place, { axis, names, series }, onSelect) => {
  const maxBars = 400;
  const maxNameLength = 40;
  const numbers = names.map((_, bar) => bar + 1);
  const longest = Math.max(...names.map((_, bar) => series
    .reduce((sum, { ns }) => sum + ns[bar], 0)));
  const [scale, unit] = profkit.unitFor(longest, profkit.timeUnits);

  function trace({ label, color, isIdle, ns }) {
    const fill = profkit.color(color);
    const pattern = { shape: isIdle ? '/' : '', fgcolor: profkit.color('--bg'), fgopacity: 0.55,
      size: 6, solidity: 0.35, fillmode: 'overlay' };
    const kind = names.length > maxBars
      ? { type: 'scatter', mode: 'none', stackgroup: 'bars', fillcolor: fill, fillpattern: pattern }
      : { type: 'bar', marker: { color: fill, pattern } };
    return {
      ...kind,
      name: label,
      x: numbers,
      y: ns.map((each) => each / scale),
      customdata: ns.map((each, bar) => `${names[bar]}: ${profkit.formatNs(each)}`),
      hovertemplate: '%{customdata}<extra>%{fullData.name}</extra>',
    };
  }

  function make() {
    const ticks = axis === 'step' ? (names.length < 25 ? { dtick: 1 } : {})
      : { tickvals: numbers, ticktext: names.map((name) => name.slice(-maxNameLength)) };
    return {
      traces: series.map(trace),
      layout: {
        barmode: 'stack',
        bargap: names.length > 60 ? 0 : 0.25,
        height: 340,
        legend: { orientation: 'h', y: -0.2, traceorder: 'normal' },
        xaxis: { title: { text: axis }, ...ticks },
        yaxis: { title: { text: unit } },
      },
    };
  }

  profkit.chart(place, make, (event) => onSelect?.(event.points[0].x - 1));
};
