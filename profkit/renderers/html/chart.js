'use strict';
/** Charts by plotly: drawn when they are about to become visible, redrawn when the theme changes. */
profkit.chart = (() => {
  const charts = new Set();

  function font() {
    return { family: getComputedStyle(document.body).fontFamily, size: 12,
      color: profkit.color('--fg') };
  }

  /** A layout in the colours of the page. */
  function themed(layout) {
    const line = profkit.color('--line');
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true };
    return {
      margin: { l: 60, r: 16, t: 8, b: 40 },
      paper_bgcolor: 'rgba(0,0,0,0)',
      plot_bgcolor: 'rgba(0,0,0,0)',
      font: font(),
      hoverlabel: { font: { ...font(), color: profkit.color('--bg') },
        bgcolor: profkit.color('--fg'), bordercolor: profkit.color('--fg') },
      ...layout,
      xaxis: { ...axis, ...layout.xaxis },
      yaxis: { ...axis, ...layout.yaxis },
    };
  }

  async function draw(chart) {
    const { place, make, onClick } = chart;
    try {
      const plotly = await profkit.plotly();
      const { traces, layout } = make();
      const settings = { displaylogo: false, responsive: true, displayModeBar: false };
      await plotly.react(place, traces, themed(layout), settings);
      if (onClick && !chart.isDrawn) place.on('plotly_click', onClick);
      chart.isDrawn = true;
      place.dataset.drawn = 'true';
    } catch {
      place.classList.add('failed');
      place.textContent = 'This browser cannot draw the chart; the table has its figures.';
    }
  }

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      near.unobserve(entry.target);
      for (const chart of charts) if (chart.place === entry.target) draw(chart);
    }
  }, { root: document, rootMargin: '400px' });

  window.addEventListener('profkit:theme', () => {
    for (const chart of charts) if (chart.isDrawn) draw(chart);
  });

  window.addEventListener('beforeprint', () => {
    for (const chart of charts) if (!chart.isDrawn) draw(chart);
  });

  /**
   * Add a chart.
   * @param {HTMLElement} place
   * @param {() => {traces: object[], layout: object}} make what plotly draws, in current colours
   * @param {(event: object) => void} [onClick]
   * @returns {() => void} redraws it
   */
  return (place, make, onClick) => {
    const chart = { place, make, onClick, isDrawn: false };
    charts.add(chart);
    near.observe(place);
    return () => { if (chart.isDrawn) draw(chart); };
  };
})();
