'use strict';
/** The heat map of ranks and steps: tooltips, the choice of time, keys, links to the timeline. */
(() => {
  const { heat: maps } = profkit.data('ranks');
  const figure = document.getElementById('ranks-heat');
  const table = figure.querySelector('table');
  const rows = [...table.tBodies[0].rows].map((row) => [...row.querySelectorAll('td')]);
  const hasTimeline = document.getElementById('ranks-view') !== null;
  const median = figure.querySelector('.levels b');
  let [shown, isWithoutWaiting] = [maps[0], false];
  let at = [0, 0];

  function about([rank, step, timeNs, waitNs]) {
    const ns = isWithoutWaiting ? timeNs - waitNs : timeNs;
    const ratio = shown.medianNs
      ? `, ${profkit.formatNumber(ns / shown.medianNs)} times the median` : '';
    const parts = waitNs ? `: ${profkit.formatNs(timeNs - waitNs)} of its own and `
      + `${profkit.formatNs(waitNs)} waiting for other ranks` : '';
    return `Rank ${rank}, ${shown.steps[step]}: ${profkit.formatNs(ns)}${ratio}`
      + `. Step time is ${profkit.formatNs(timeNs)}${parts}.`;
  }

  function draw() {
    median.textContent = profkit.formatNs(shown.medianNs);
    rows.forEach((cells, row) => cells.forEach((cell, column) => {
      const figures = shown.cells[row][column];
      if (!figures) return;
      const [, , timeNs, waitNs, level] = figures;
      cell.dataset.level = String(level);
      cell.dataset.tip = about(figures);
      cell.firstChild.textContent = profkit.formatNs(isWithoutWaiting ? timeNs - waitNs : timeNs);
    }));
  }

  /** Make a cell the only one that the tab key reaches. */
  function moveTo(row, column, focuses = true) {
    rows[at[0]][at[1]].tabIndex = -1;
    at = [row, column];
    rows[row][column].tabIndex = 0;
    if (focuses) rows[row][column].focus();
  }

  function placeOf(cell) {
    const row = rows.findIndex((cells) => cells.includes(cell));
    return [row, row < 0 ? -1 : rows[row].indexOf(cell)];
  }

  function showStep([row, column]) {
    const range = shown.ranges[shown.cells[row]?.[column]?.[1]];
    if (range && hasTimeline) profkit.showRange(...range, '', { timeline: 'ranks' });
  }

  const last = (list) => list.length - 1;
  const keys = {
    ArrowUp: ([row, column]) => [Math.max(row - 1, 0), column],
    ArrowDown: ([row, column]) => [Math.min(row + 1, last(rows)), column],
    ArrowLeft: ([row, column]) => [row, Math.max(column - 1, 0)],
    ArrowRight: ([row, column]) => [row, Math.min(column + 1, last(rows[row]))],
    Home: ([row]) => [row, 0],
    End: ([row]) => [row, last(rows[row])],
  };
  table.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === 'Enter') showStep(at);
    else if (keys[event.key]) moveTo(...keys[event.key](at));
    else return;
    event.preventDefault();
  });
  table.addEventListener('click', (event) => {
    const place = placeOf(event.target.closest('td'));
    if (place[0] < 0) return;
    moveTo(...place);
    showStep(place);
  });
  figure.addEventListener('change', (event) => {
    shown = maps[Number(event.target.value)];
    isWithoutWaiting = event.target.value !== '0';
    draw();
  });
  for (const cell of rows.flat()) cell.tabIndex = -1;
  draw();
  moveTo(0, 0, false);
})();
