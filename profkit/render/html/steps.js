'use strict';
/** Where the time of each step went: a bar a step, or areas where there are very many. */
(() => {
  const { names, startNs, durNs, series } = profkit.data('steps').steps;
  const mostBars = 400;
  const numbers = names.map((_, place) => place + 1);
  const longest = Math.max(...durNs);
  const [scale, unit] = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']]
    .find(([size]) => longest >= size) ?? [1, 'ns'];

  function trace({ label, color, isIdle, ns }) {
    const look = profkit.color(color);
    const kind = names.length > mostBars
      ? { type: 'scatter', mode: 'none', stackgroup: 'steps', fillcolor: look }
      : { type: 'bar', marker: { color: look,
        pattern: { shape: isIdle ? '/' : '', fgcolor: profkit.color('--bg'), fgopacity: 0.55,
          size: 6, solidity: 0.35, fillmode: 'overlay' } } };
    return {
      ...kind,
      name: label,
      x: numbers,
      y: ns.map((each) => each / scale),
      customdata: ns.map((each, place) => `${names[place]}: ${profkit.formatNs(each)}`),
      hovertemplate: '%{customdata}<extra>%{fullData.name}</extra>',
    };
  }

  function make() {
    return {
      traces: series.map(trace),
      layout: {
        barmode: 'stack',
        bargap: names.length > 60 ? 0 : 0.25,
        height: 340,
        legend: { orientation: 'h', y: -0.2, traceorder: 'normal' },
        xaxis: { title: { text: 'step' }, ...(names.length < 25 ? { dtick: 1 } : {}) },
        yaxis: { title: { text: unit } },
      },
    };
  }

  profkit.chart(document.getElementById('steps-chart'), make, (event) => {
    const step = event.points[0].x - 1;
    profkit.showRange(startNs[step], startNs[step] + durNs[step], names[step]);
  });
})();
