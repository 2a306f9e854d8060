'use strict';
/** Allocated and reserved memory over time, with layers by line, use or operator; segments. */
(async () => {
  const microseconds = [[1e6, 's'], [1e3, 'ms'], [1, 'µs']];
  const numbers = [[1, '']];
  const clocks = {
    ns: { axis: 'time', scales: profkit.timeUnits, name: profkit.formatNs },
    us: { axis: 'time', scales: microseconds, name: (us) => profkit.formatNs(us * 1000) },
    entries: { axis: 'entries of the history', scales: numbers,
      name: (n) => `after ${profkit.formatCount(n)} entries` },
    step: { axis: 'step', scales: numbers, name: (n) => `step ${profkit.formatCount(n)}` },
  };

  function draw({ id, device, clock, at, lines, layers, lives, uses }) {
    const inputs = [...document.querySelectorAll(`input[name="${id}"]`)];
    const { axis, scales, name } = clocks[clock];
    const kinds = Object.keys(layers);
    const place = document.getElementById(id);

    function layerSeries() {
      const kind = inputs.find((input) => input.checked)?.value ?? kinds[0];
      return (layers[kind] ?? []).map((layer) => ({ kind: 'layer', ...layer }));
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
      onSpan: lives && onSpan,
    });

    /** Return a sentence on the blocks that were live in a span: number, bytes and uses. */
    function liveText(span, { n, bytes }) {
      const whole = bytes.reduce((sum, ofUse) => sum + ofUse, 0);
      const byUse = uses.map((label, use) => [label, bytes[use]]).filter(([, sum]) => sum);
      const shares = byUse.sort((a, b) => b[1] - a[1]).map(([label, sum]) => (
        `${label} ${profkit.formatBytes(sum)} (${profkit.formatShare(sum / whole)})`));
      const count = profkit.formatCount(n.reduce((sum, ofUse) => sum + ofUse, 0));
      return `Selected: ${count} blocks that were live on ${device} at some time from `
        + `${name(at[span[0]])} to ${name(at[span[1]])}. Their sizes add up to `
        + `${profkit.formatBytes(whole)}${shares.length ? `: ${shares.join(', ')}` : ''}.`;
    }

    let sums = null;
    async function onSpan(span) {
      sums ??= profkit.lives(lives, uses.length);
      const text = span && liveText(span, (await sums)(...span));
      // The reader may have selected another span while this one was decoded.
      if (String(span) !== String(chart.span)) return;
      profkit.showSpan(span && { device, from: span[0], to: span[1], text });
    }

    const chart = profkit.chart(place, spec());
    for (const input of inputs) input.addEventListener('change', () => chart.update(spec()));

    if (!lives) return;
    const selected = profkit.element('p', { class: 'selected-span', role: 'status' });
    place.after(selected);
    window.addEventListener('profkit:span', ({ detail }) => {
      const isHere = detail?.device === device;
      if (!isHere) chart.showSpan(null);
      selected.replaceChildren(...(isHere ? [`${detail.text} `, profkit.element('a',
        { href: '#flames' }, 'Flame graph of them')] : []));
    });
  }

  const { charts, segments } = await profkit.storedData('memory');
  for (const chart of charts) draw(chart);

  async function drawSegments(data) {
    const root = document.getElementById(data.id);
    try {
      const columns = await profkit.unpacked(data.packed);
      new profkit.Segments(root, data, columns, clocks[data.clock].name);
    } catch {
      root.querySelector('.flame-selected').textContent = 'This browser cannot decompress the segments.';
    }
  }
  for (const data of segments) drawSegments(data);
})();
