'use strict';
/** Allocated and reserved memory over time, with layers by line, use or operator. */
(() => {
  const clocks = {
    ns: { title: 'time', scales: profkit.timeUnits },
    us: { title: 'time', scales: [[1e6, 's'], [1e3, 'ms'], [1, 'µs']] },
    entries: { title: 'entries of the history', scales: [[1, '']] },
    step: { title: 'step', scales: [[1, '']] },
  };
  const nSeries = 8;

  const largest = (values) => Math.max(...values.map((each) => Math.abs(each ?? 0)));

  function trace(x, { name, bytes }, scale, style) {
    return {
      type: 'scatter',
      name,
      x,
      y: bytes.map((each) => (each === null ? null : each / scale)),
      text: bytes.map((each) => (each === null ? '' : profkit.formatBytes(each))),
      hovertemplate: '%{text}<extra>%{fullData.name}</extra>',
      connectgaps: true,
      ...style,
    };
  }

  function draw(chart) {
    const { id, clock, at, lines, layers } = chart;
    const place = document.getElementById(id);
    const inputs = [...document.querySelectorAll(`input[name="${id}"]`)];
    const { title, scales } = clocks[clock];
    const [scale, unit] = profkit.unitFor(largest(at), scales);
    const bytes = lines.flatMap((line) => line.bytes);
    const [size, sizeUnit] = profkit.unitFor(largest(bytes), profkit.sizeUnits);
    const x = at.map((each) => each / scale);
    const shape = clock === 'step' ? 'linear' : 'hv';
    const kinds = Object.keys(layers);

    /** Layers in the page's colours; the rest, which has no colour of its own, in grey. */
    function layerTraces() {
      const kind = inputs.find((input) => input.checked)?.value ?? kinds[0];
      return (layers[kind] ?? []).map((layer, index) => {
        const color = profkit.color(`--series-${Math.min(index + 1, nSeries)}`);
        const isRest = index >= nSeries || layer.isRest;
        return trace(x, layer, size, {
          mode: 'lines', stackgroup: 'layers', line: { width: 0, shape, simplify: false },
          fillcolor: isRest ? profkit.color('--line') : color,
        });
      });
    }

    function lineTraces() {
      const overLayers = kinds.length > 0;
      return lines.map((line, index) => trace(x, line, size, {
        mode: clock === 'step' && at.length < 60 ? 'lines+markers' : 'lines',
        line: {
          shape,
          simplify: false,
          width: overLayers ? 1.5 : 2,
          dash: index % 2 ? 'dash' : 'solid',
          color: overLayers ? profkit.color(index ? '--muted' : '--fg')
            : profkit.color(`--series-${index + 1}`),
        },
      }));
    }

    function make() {
      return {
        traces: [...layerTraces(), ...lineTraces()],
        layout: {
          height: 380,
          hovermode: 'x unified',
          legend: { orientation: 'h', y: -0.18, traceorder: 'normal' },
          xaxis: { title: { text: unit ? `${title} (${unit})` : title } },
          yaxis: { title: { text: sizeUnit }, rangemode: 'tozero' },
        },
      };
    }

    const redraw = profkit.chart(place, make);
    for (const input of inputs) input.addEventListener('change', redraw);
  }

  for (const chart of profkit.data('memory').charts) draw(chart);
})();
