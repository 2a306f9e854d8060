'use strict';
/**
 * Stacked bars of time: one for each step or report.
 * @param {HTMLElement} place
 * @param {{axis: string, names: string[], series: object[]}} data
 * @param {(number: number) => void} [onSelect] called with the index of a selected bar
 */
profkit.stacked = (place, { axis, names, series }, onSelect) => {
  profkit.chart(place, {
    axis,
    at: names.map((_, bar) => bar + 1),
    name: (bar) => names[bar],
    names: axis === 'step' ? undefined : names,
    series: series.map(({ ns, ...rest }) => ({ kind: 'bar', values: ns, ...rest })),
    format: profkit.formatNs,
    scales: profkit.timeUnits,
    onSelect,
  });
};
