'use strict';
/** The predicted time without the findings that are switched on. */
(() => {
  const form = document.querySelector('[data-what-if]');
  const known = profkit.data('what-if');
  if (!form || !known) return;
  const { formatNs, formatShare } = profkit;
  const switches = [...form.querySelectorAll('[data-switch]')];
  const output = form.querySelector('[data-predicted]');
  const places = new Map(known.combinations.map((number, place) => [number, place]));
  const beforeNs = known.afterNs[places.get(0)];
  const all = 2 ** switches.length - 1;

  /** The time after, and the least, of a known combination. */
  const times = (number) => [known.afterNs[places.get(number)],
    known.minAfterNs[places.get(number)]];

  /**
   * The bounds of a combination that was not replayed: removing more never takes longer, so it is
   * between all findings removed and the best known part of it.
   */
  function bounds(number) {
    const parts = known.combinations.filter((part) => (part & number) === part);
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
    const number = switches.reduce((sum, each, i) => sum + (each.checked ? 2 ** i : 0), 0);
    output.textContent = text(number);
  }

  for (const each of switches) each.hidden = false;
  form.addEventListener('change', update);
  form.addEventListener('submit', (event) => event.preventDefault());
  update();
})();
