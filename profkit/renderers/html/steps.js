'use strict';
/** The parts of each step; a click on a bar shows the step on the timeline. */
(() => {
  const { steps } = profkit.data('steps');
  profkit.stacked(document.getElementById('steps-chart'), { axis: 'step', ...steps }, (step) => {
    const start = steps.startNs[step];
    profkit.showRange(start, start + steps.durNs[step], steps.names[step]);
  });
})();
