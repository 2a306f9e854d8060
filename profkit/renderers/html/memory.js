'use strict';
/** Allocated and reserved memory over time, with layers by line, use or operator. */
(() => {
  const microseconds = [[1e6, 's'], [1e3, 'ms'], [1, 'µs']];
  const numbers = [[1, '']];
  const clocks = {
    ns: { axis: 'time', scales: profkit.timeUnits, name: profkit.formatNs },
    us: { axis: 'time', scales: microseconds, name: (us) => profkit.formatNs(us * 1000) },
    entries: { axis: 'entries of the history', scales: numbers,
      name: (n) => `after ${profkit.formatCount(n)} entries` },
    step: { axis: 'step', scales: numbers, name: (n) => `step ${profkit.formatCount(n)}` },
  };
  const nSeries = 8;

  function draw({ id, clock, at, lines, layers }) {
    const inputs = [...document.querySelectorAll(`input[name="${id}"]`)];
    const { axis, scales, name } = clocks[clock];
    const kinds = Object.keys(layers);

    /** Layers in the page's colours; the rest, which has no colour of its own, in grey. */
    function layerSeries() {
      const kind = inputs.find((input) => input.checked)?.value ?? kinds[0];
      return (layers[kind] ?? []).map(({ name: label, bytes, isRest }, index) => ({
        kind: 'layer', label, values: bytes,
        color: index >= nSeries || isRest ? '--line' : `--series-${index + 1}`,
      }));
    }

    function lineColor(index) {
      if (!kinds.length) return `--series-${index + 1}`;
      return index ? '--muted' : '--fg';
    }

    const spec = () => ({
      at, axis, atScales: scales,
      name: (index) => name(at[index]),
      series: [...layerSeries(), ...lines.map(({ name: label, bytes }, index) => ({
        kind: 'line', label, values: bytes, dash: index % 2 === 1, color: lineColor(index),
      }))],
      format: profkit.formatBytes,
      scales: profkit.sizeUnits,
      holds: clock !== 'step',
    });

    const chart = profkit.chart(document.getElementById(id), spec());
    for (const input of inputs) input.addEventListener('change', () => chart.update(spec()));
  }

  for (const chart of profkit.data('memory').charts) draw(chart);
})();
