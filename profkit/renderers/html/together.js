'use strict';
/** Several reports: a bar and a row for each, and the page of the one that is chosen. */
(() => {
  const chart = document.getElementById('parts-chart');
  const select = document.getElementById('chosen');
  const frame = document.getElementById('chosen-page');
  const plotlyMark = 'id="plotly-packed">';
  let asked = 0;

  /** Put a page together and show it; the last one that was asked for stays. */
  async function show(number) {
    asked += 1;
    const mine = asked;
    const packed = document.getElementById(`page-${number}`);
    let page = '';
    try {
      page = new TextDecoder().decode(await profkit.unpack(packed.textContent));
    } catch {
      frame.replaceWith('This browser cannot unpack the page. Make one of this report alone.');
      return;
    }
    if (mine !== asked) return;
    const plotly = document.getElementById('plotly-packed').textContent;
    frame.title = select.options[number].text;
    frame.srcdoc = page.replace(plotlyMark, () => plotlyMark + plotly);
  }

  function choose(number) {
    select.value = String(number);
    show(number);
    document.getElementById('report').scrollIntoView();
  }

  function tellTheme() {
    frame.contentWindow?.postMessage({ theme: document.documentElement.dataset.theme }, '*');
  }

  select.addEventListener('change', () => show(Number(select.value)));
  frame.addEventListener('load', tellTheme);
  window.addEventListener('profkit:theme', tellTheme);
  const { parts } = profkit.data('reports');
  if (chart) profkit.stacked(chart, parts, choose);
  show(0);
})();
