'use strict';
/**
 * Stacked bars of time: one a step or a report, with what it was made of.
 * @param {HTMLElement} place
 * @param {{axis: string, names: string[], series: object[]}} data
 * @param {(number: number) => void} [onChoose] is told which bar was chosen
 */
profkit.stacked = (place, { axis, names, series }, onChoose) => {
  const mostBars = 400;
  const mostNames = 40;
  const numbers = names.map((_, bar) => bar + 1);
  const longest = Math.max(...names.map((_, bar) => series
    .reduce((sum, { ns }) => sum + ns[bar], 0)));
  const [scale, unit] = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']]
    .find(([size]) => longest >= size) ?? [1, 'ns'];

  function trace({ label, color, isIdle, ns }) {
    const look = profkit.color(color);
    const pattern = { shape: isIdle ? '/' : '', fgcolor: profkit.color('--bg'), fgopacity: 0.55,
      size: 6, solidity: 0.35, fillmode: 'overlay' };
    const kind = names.length > mostBars
      ? { type: 'scatter', mode: 'none', stackgroup: 'bars', fillcolor: look, fillpattern: pattern }
      : { type: 'bar', marker: { color: look, pattern } };
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
      : { tickvals: numbers, ticktext: names.map((name) => name.slice(-mostNames)) };
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

  profkit.chart(place, make, (event) => onChoose?.(event.points[0].x - 1));
};
