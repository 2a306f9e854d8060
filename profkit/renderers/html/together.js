'use strict';
/** A page of several reports: a bar and a row for each, and the page of the selected one. */
(() => {
  const chart = document.getElementById('parts-chart');
  const select = document.getElementById('selected-report');
  const frame = document.getElementById('selected-page');
  let nRequests = 0;

  /** Assemble a page and show it, unless another one is selected meanwhile. */
  async function show(number) {
    nRequests += 1;
    const request = nRequests;
    const packed = document.getElementById(`page-${number}`);
    let page = '';
    try {
      page = new TextDecoder().decode(await profkit.unpack(packed.textContent));
    } catch {
      frame.replaceWith('This browser cannot unpack the page. Render this report alone.');
      return;
    }
    if (request !== nRequests) return;
    frame.title = select.options[number].text;
    frame.srcdoc = page;
  }

  function sendTheme() {
    frame.contentWindow?.postMessage({ theme: document.documentElement.dataset.theme }, '*');
  }

  select.addEventListener('change', () => show(Number(select.value)));
  frame.addEventListener('load', sendTheme);
  window.addEventListener('profkit:theme', sendTheme);
  const { parts } = profkit.data('reports');
  if (chart) {
    profkit.stacked(chart, parts, (number) => {
      select.value = String(number);
      show(number);
      document.getElementById('report').scrollIntoView();
    });
  }
  show(0);
})();
