'use strict';
/** The timeline: what is shown of it, and what the pointer, the keyboard and the page ask of it. */
(() => {
  const { timeline: recorded } = profkit.data('timeline');
  const { sites, looks, steps } = recorded;
  const whole = { from: recorded.startNs, to: Math.max(recorded.endNs, recorded.startNs + 1) };
  const root = document.getElementById('timeline-view');
  const lanes = root.querySelector('.lanes');
  const canvas = root.querySelector('.slices');
  const ruler = root.querySelector('.ruler');
  const overview = root.querySelector('.overview');
  const tip = root.querySelector('.slice-tip');
  const names = root.querySelector('.lane-names');
  const range = document.getElementById('timeline-range');
  const details = document.getElementById('timeline-details');
  const search = document.getElementById('timeline-search');
  const next = document.getElementById('timeline-next');
  const found = document.getElementById('timeline-found');
  const stepChoice = document.getElementById('timeline-step');
  const layout = new profkit.lanes.Layout(recorded.lanes);
  const facts = new profkit.SliceFacts(recorded);
  const calm = window.matchMedia('(prefers-reduced-motion: reduce)');
  const overviewHeight = 34;
  const rulerHeight = 22;
  const smallestNs = 20;

  let view = { ...whole };
  let marked = null;
  let chosen = null;
  let isDue = false;
  let spokenLater = null;

  const levels = new profkit.slices.Levels(recorded, draw);

  /** Width of what is drawn, beside the lanes' names. */
  function width() {
    return Math.max(50, canvas.clientWidth);
  }

  const pixelNs = () => (view.to - view.from) / width();

  /** Show a stretch of time, as much of it as there is, at once or within a moment. */
  function show(from, to, slowly = false) {
    const span = Math.min(Math.max(to - from, smallestNs), whole.to - whole.from);
    const start = Math.min(Math.max(from - (span - (to - from)) / 2, whole.from), whole.to - span);
    const target = { from: start, to: start + span };
    if (!slowly || calm.matches) {
      view = target;
      draw();
      return;
    }
    const begin = { ...view };
    const startMs = performance.now();
    const glide = (nowMs) => {
      const part = Math.min(1, (nowMs - startMs) / 180);
      const eased = 1 - (1 - part) ** 3;
      view = {
        from: begin.from + (target.from - begin.from) * eased,
        to: begin.to + (target.to - begin.to) * eased,
      };
      draw();
      if (part < 1) requestAnimationFrame(glide);
    };
    requestAnimationFrame(glide);
  }

  /** Zoom around a moment; a factor below 1 zooms in. */
  function zoom(factor, around = (view.from + view.to) / 2, slowly = false) {
    show(around - (around - view.from) * factor, around + (view.to - around) * factor, slowly);
  }

  function move(share) {
    const by = (view.to - view.from) * share;
    show(view.from + by, view.to + by);
  }

  function draw() {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(paint);
  }

  /** The rows of the overview: the steps and the streams, or without a device what they called. */
  function overviewRows() {
    const rowsOf = (kind) => recorded.lanes.filter((lane) => lane.kind === kind)
      .map((lane) => lane.firstRow + (kind === 'thread' && steps.length && lane.nRows > 1 ? 1 : 0));
    const streams = rowsOf('stream').slice(0, 3);
    return [...rowsOf('steps'), ...(streams.length ? streams : rowsOf('thread').slice(0, 1))];
  }

  function paint() {
    isDue = false;
    const size = { width: width(), height: lanes.clientHeight };
    const level = levels.at(pixelNs());
    if (!level) {
      if (levels.failed) range.textContent = 'This browser cannot unpack the timeline.';
      return;
    }
    const state = { layout, level, sites, looks, view, size, marked, chosen };
    canvas.style.height = `${size.height}px`;
    profkit.lanes.drawSlices(canvas, { ...state, scroll: lanes.scrollTop });
    profkit.lanes.drawRuler(ruler, view, ruler.clientWidth, rulerHeight);
    profkit.lanes.drawOverview(overview, {
      ...state, whole, rows: overviewRows(), level: levels.at((whole.to - whole.from) / width()),
      size: { width: overview.clientWidth, height: overviewHeight },
    });
    Object.assign(root.dataset, {
      from: String(view.from), to: String(view.to), resolution: String(level.resolutionNs),
    });
    if (!performance.getEntriesByName('profkit:timeline').length) {
      performance.mark('profkit:timeline');
    }
    say();
  }

  /** Say what is shown: at once to the eye, to screen readers when it has come to rest. */
  function say() {
    const text = `${profkit.formatNs(view.to - view.from)} of `
      + `${profkit.formatNs(whole.to - whole.from)}, from ${profkit.formatNs(view.from)}`;
    clearTimeout(spokenLater);
    spokenLater = setTimeout(() => { range.textContent = text; }, 250);
  }

  /** Open a lane to all its rows, or close it. */
  function toggle(place) {
    layout.toggle(place);
    drawNames();
    draw();
  }

  /** Names of the lanes, as buttons where a lane can open. */
  function drawNames() {
    const { laneHeight } = profkit.lanes;
    lanes.style.height = `${layout.height + 2}px`;
    canvas.style.marginBottom = `${Math.max(0, layout.height - lanes.clientHeight)}px`;
    const made = recorded.lanes.map((lane, place) => {
      const canOpen = layout.canOpen(place);
      const about = `${lane.label}: ${profkit.formatCount(lane.n)} events, `
        + `busy ${profkit.formatNs(lane.busyNs)}`;
      const name = profkit.element(canOpen ? 'button' : 'span',
        { class: 'lane-name', title: about, ...(canOpen ? { type: 'button', tabindex: '-1' } : {}) },
        lane.label);
      if (canOpen) {
        name.setAttribute('aria-expanded', String(layout.isOpen[place]));
        name.addEventListener('click', () => toggle(place));
      }
      name.style.top = `${layout.top[place]}px`;
      name.style.height = `${laneHeight - 4}px`;
      return name;
    });
    names.replaceChildren(...made);
    names.style.height = `${layout.height}px`;
  }

  /** What the pointer is on: a row, and the place of a slice in it or -1. */
  function under(event) {
    const box = canvas.getBoundingClientRect();
    const row = layout.rowAt(event.clientY - box.top + lanes.scrollTop);
    const level = levels.at(pixelNs());
    const ns = view.from + (event.clientX - box.left) * pixelNs();
    if (!row || !level || event.clientX < box.left) return { level, row: null, place: -1, ns };
    const place = profkit.slices.sliceAt(level, row.row, ns, 3 * pixelNs());
    return { level, row, place, ns };
  }

  function hideTip() {
    tip.hidden = true;
  }

  function showTip(event) {
    const { level, row, place } = under(event);
    if (!row || place < 0) {
      hideTip();
      return;
    }
    tip.replaceChildren(profkit.element('b', {}, facts.title(level, place)),
      facts.list(facts.of(level, place)));
    tip.hidden = false;
    const box = root.getBoundingClientRect();
    const left = Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 4);
    const above = event.clientY - box.top + 18 + tip.offsetHeight > box.height + 120;
    const top = event.clientY - box.top + (above ? -tip.offsetHeight - 10 : 18);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${top}px`;
  }

  function choose(level, row, place) {
    if (place < 0) {
      chosen = null;
      details.replaceChildren();
    } else {
      chosen = { row, start: level.start[place], end: level.end[place] };
      const to = profkit.element('button', { type: 'button' }, 'Zoom to it');
      to.addEventListener('click', zoomToChosen);
      const lane = recorded.lanes[layout.rows.find((each) => each.row === row)?.lane ?? 0];
      details.replaceChildren(
        profkit.element('h3', {}, facts.title(level, place)),
        facts.list([['Lane', lane.label], ...facts.of(level, place)]), to,
      );
    }
    draw();
  }

  function zoomToChosen() {
    if (!chosen) return;
    const margin = Math.max((chosen.end - chosen.start) * 0.1, smallestNs);
    show(chosen.start - margin, chosen.end + margin, true);
  }

  /** Choose the slice beside, above or below the one that is chosen. */
  function chooseBeside(across, down) {
    const level = levels.at(pixelNs());
    if (!level) return;
    const at = layout.rows.findIndex((each) => each.row === chosen?.row);
    const place = Math.min(Math.max(at + down, 0), layout.rows.length - 1);
    const { row, y } = layout.rows[place];
    const middle = chosen ? (chosen.start + chosen.end) / 2 : view.from;
    let slice = profkit.slices.sliceAt(level, row, middle, whole.to - whole.from);
    if (across !== 0 && chosen) slice += across;
    if (slice < level.first[row] || slice >= level.first[row + 1]) return;
    choose(level, row, slice);
    if (level.start[slice] < view.from || level.end[slice] > view.to) {
      const span = view.to - view.from;
      const start = level.start[slice] - span / 4;
      show(start, start + span);
    }
    if (y < lanes.scrollTop) lanes.scrollTop = y;
    const below = y + profkit.lanes.rowHeight - lanes.clientHeight;
    if (below > lanes.scrollTop) lanes.scrollTop = below;
  }

  const keys = {
    ArrowLeft: () => move(-0.15),
    ArrowRight: () => move(0.15),
    ArrowUp: () => { lanes.scrollTop -= 3 * profkit.lanes.rowHeight; },
    ArrowDown: () => { lanes.scrollTop += 3 * profkit.lanes.rowHeight; },
    '+': () => zoom(0.6),
    '=': () => zoom(0.6),
    '-': () => zoom(1 / 0.6),
    0: () => show(whole.from, whole.to, true),
    Home: () => show(whole.from, whole.to, true),
    Enter: zoomToChosen,
    ' ': () => toggle(layout.rows.find((each) => each.row === chosen?.row)?.lane ?? 0),
    Escape: () => choose(null, 0, -1),
  };
  const shifted = {
    ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
  };

  lanes.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== lanes) return;
    const beside = event.shiftKey ? shifted[event.key] : undefined;
    if (beside) chooseBeside(...beside);
    else if (keys[event.key]) keys[event.key]();
    else return;
    event.preventDefault();
  });

  lanes.addEventListener('wheel', (event) => {
    const { ns } = under(event);
    if (event.ctrlKey || event.metaKey) zoom(1.0015 ** event.deltaY, ns);
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      move((event.deltaX || event.deltaY) / width());
    } else return;
    event.preventDefault();
  }, { passive: false });

  profkit.onDrags(canvas, {
    view: () => view,
    show,
    scroller: lanes,
    began: hideTip,
    pressed: (event) => {
      const { level, row, place } = under(event);
      choose(level, row?.row ?? 0, row ? place : -1);
    },
  });
  canvas.addEventListener('pointermove', (event) => { if (!event.buttons) showTip(event); });
  canvas.addEventListener('pointerleave', hideTip);
  canvas.addEventListener('dblclick', zoomToChosen);
  lanes.addEventListener('scroll', () => {
    hideTip();
    draw();
  });

  overview.addEventListener('pointerdown', (event) => {
    const span = view.to - view.from;
    const to = (moved) => {
      const box = overview.getBoundingClientRect();
      const ns = whole.from + ((moved.clientX - box.left) / box.width) * (whole.to - whole.from);
      show(ns - span / 2, ns + span / 2);
    };
    overview.setPointerCapture(event.pointerId);
    overview.addEventListener('pointermove', to);
    overview.addEventListener('pointerup',
      () => overview.removeEventListener('pointermove', to), { once: true });
    to(event);
  });

  for (const button of document.querySelectorAll('[data-zoom]')) {
    button.addEventListener('click', () => {
      if (button.dataset.zoom === 'all') show(whole.from, whole.to, true);
      else zoom(button.dataset.zoom === 'in' ? 0.5 : 2, undefined, true);
    });
  }

  stepChoice?.addEventListener('change', () => {
    const step = steps[stepChoice.value];
    if (step && stepChoice.value !== '') show(step.startNs, step.endNs, true);
    else show(whole.from, whole.to, true);
  });

  /** Mark what has a text in its name, its line or its operator, and say how much that is. */
  function mark() {
    const wanted = search.value.trim().toLowerCase();
    next.disabled = wanted === '';
    marked = null;
    found.textContent = '';
    if (wanted !== '') {
      const has = sites.texts.map((text) => text.toLowerCase().includes(wanted));
      marked = new Set([...sites.name.keys()].filter((site) => has[sites.name[site]]
        || has[sites.place[site]] || has[sites.op[site]]));
      let [n, totalNs] = [0, 0];
      for (const site of marked) {
        n += sites.n[site];
        totalNs += sites.totalNs[site];
      }
      found.textContent = n
        ? `${profkit.formatCount(n)} slices, ${profkit.formatNs(totalNs)} together` : 'nothing';
      next.disabled = n === 0;
    }
    draw();
  }

  /** Go to the next slice, in time, of those that are marked. */
  function goToNext() {
    const level = levels.at(pixelNs());
    if (!level || !marked) return;
    const after = chosen ? chosen.start : -Infinity;
    let best = null;
    for (const { row } of layout.rows) {
      for (let i = level.first[row]; i < level.first[row + 1]; i += 1) {
        if (!marked.has(level.site[i]) || level.start[i] <= after) continue;
        if (!best || level.start[i] < level.start[best.i]) best = { row, i };
        break;
      }
    }
    if (!best) {
      chosen = null;
      found.textContent = 'no more; again from the first';
      return;
    }
    choose(level, best.row, best.i);
    zoomToChosen();
  }

  search.addEventListener('input', mark);
  search.addEventListener('keydown', (event) => { if (event.key === 'Enter') goToNext(); });
  next.addEventListener('click', goToNext);

  window.addEventListener('profkit:range', ({ detail }) => {
    show(detail.startNs, detail.endNs, true);
    document.getElementById('timeline').scrollIntoView({ block: 'start' });
    lanes.focus({ preventScroll: true });
  });
  window.addEventListener('profkit:theme', draw);
  new ResizeObserver(() => {
    drawNames();
    draw();
  }).observe(lanes);
  drawNames();
})();
