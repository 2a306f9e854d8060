'use strict';
/** The predicted time without the findings that are switched on. */
(() => {
  const form = document.querySelector('[data-what-if]');
  const replayed = profkit.data('what-if');
  if (!form || !replayed) return;
  const { formatNs, formatShare } = profkit;
  const switches = [...form.querySelectorAll('[data-switch]')];
  const output = form.querySelector('[data-predicted]');
  const places = new Map(replayed.combinations.map((number, place) => [number, place]));
  const beforeNs = replayed.afterNs[places.get(0)];
  const all = 2 ** switches.length - 1;

  /** Return the time after a replayed combination, and the least. */
  const times = (number) => [replayed.afterNs[places.get(number)],
    replayed.minAfterNs[places.get(number)]];

  /**
   * Return the bounds of a combination that was not replayed: removing more never takes longer, so it is
   * between all findings removed and the best replayed part of it.
   */
  function bounds(number) {
    const parts = replayed.combinations.filter((part) => (part & number) === part);
    return [Math.min(...parts.map((part) => times(part)[0])), times(all)[1]];
  }

  function saved(afterNs) {
    if (afterNs === beforeNs) return 'as recorded';
    const share = formatShare((beforeNs - afterNs) / beforeNs);
    return `${formatNs(beforeNs - afterNs)} or ${share} less than ${formatNs(beforeNs)}`;
  }

  function text(number) {
    if (!places.has(number)) {
      const [mostNs, leastNs] = bounds(number);
      return `between ${formatNs(leastNs)} and ${formatNs(mostNs)} (estimate)`;
    }
    const [afterNs, leastNs] = times(number);
    const best = leastNs < afterNs ? `; at best ${formatNs(leastNs)}` : '';
    return `${formatNs(afterNs)}, ${saved(afterNs)}${best}`;
  }

  function update() {
    const number = switches.reduce((sum, { checked }, i) => sum + (checked ? 2 ** i : 0), 0);
    output.textContent = text(number);
  }

  for (const checkbox of switches) checkbox.hidden = false;
  form.addEventListener('change', update);
  form.addEventListener('submit', (event) => event.preventDefault());
  update();
})();
