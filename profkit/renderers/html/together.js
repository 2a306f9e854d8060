'use strict';
/** A page of several reports: a bar and a row for each, and the page of the selected one. */
(() => {
  const chart = document.getElementById('parts-chart');
  const select = document.getElementById('selected-report');
  const frame = document.getElementById('selected-page');
  const packed = [...document.querySelectorAll('script[id^="page-"]')];
  const maxPrinted = 24e6;
  const printed = profkit.element('div', { class: 'printed' });
  const pages = [];
  let nRequests = 0;

  /** The text of a page, which is unpacked once. */
  async function text(number) {
    pages[number] ??= new TextDecoder().decode(await profkit.unpack(packed[number].textContent));
    return pages[number];
  }

  /** Show a page, unless another one is selected meanwhile. */
  async function show(number) {
    nRequests += 1;
    const request = nRequests;
    let page = '';
    try {
      page = await text(number);
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

  /** The part of a page that is on paper without its scripts. */
  function onPaper(page, number) {
    const main = new DOMParser().parseFromString(page, 'text/html').querySelector('main');
    for (const element of main.querySelectorAll('#timeline, #flames, #glossary, .chart, .segments, '
      + '.keys, canvas, input, select, script')) element.remove();
    for (const element of main.querySelectorAll('[id]')) element.removeAttribute('id');
    for (const details of main.querySelectorAll('details')) details.open = true;
    return profkit.element('article', {},
      profkit.element('h2', {}, select.options[number].text), [...main.childNodes]);
  }

  // A frame prints only its first page. Printing does not wait: pages are unpacked in advance.
  async function prepare() {
    if (packed.reduce((sum, { textContent }) => sum + textContent.length, 0) > maxPrinted) return;
    for (const number of packed.keys()) await text(number);
    document.getElementById('report').dataset.printable = '';
  }
  window.addEventListener('beforeprint', () => {
    printed.replaceChildren(...pages.map(onPaper));
    frame.after(printed);
  });
  window.addEventListener('afterprint', () => printed.remove());
  show(0).then(prepare).catch(() => {});
})();
