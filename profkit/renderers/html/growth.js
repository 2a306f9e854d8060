'use strict';
/** What grows, in a finding on growing memory: its bytes and its number over the steps. */
(() => {
  const formats = {
    bytes: { format: profkit.formatBytes, scales: profkit.sizeUnits },
    count: { format: profkit.formatCount, scales: [[1, '']] },
  };
  for (const { id, unit, label, at, values } of profkit.data('findings').growth) {
    profkit.chart(document.getElementById(id), {
      at,
      axis: 'step',
      name: (index) => `step ${profkit.formatCount(at[index])}`,
      series: [{ kind: 'line', label, color: '--series-4', values }],
      ...formats[unit],
      height: 150,
      fromLowest: true,
    });
  }
})();
