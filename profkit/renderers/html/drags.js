'use strict';
/** Pointer gestures on a canvas that shows a time range: drag to pan, pinch to zoom, click. */
(() => {
  const minDragPx = 4;

  /** Return the middle between the pointers, and their distance, which is 1 for a single one. */
  function grip(pointers) {
    const [first, second = first] = pointers.values();
    return {
      x: (first.x + second.x) / 2,
      y: (first.y + second.y) / 2,
      distance: pointers.size < 2 ? 1
        : Math.max(1, Math.hypot(second.x - first.x, second.y - first.y)),
    };
  }

  /**
   * Make a canvas follow drags and pinches.
   *
   * `handlers.view()` returns the visible range, `handlers.show(from, to)` changes it. A mouse drag
   * also scrolls `handlers.scroller`, which touch scrolls natively. `handlers.onStart()` is called
   * on each press, and `handlers.onClick(event)` after a press that was no drag. A drag whose press
   * is of an area, as `handlers.isArea(event)` says, calls `handlers.onArea(first, now)` with two
   * events instead, and with true as the third argument when it ends.
   */
  profkit.onDrags = (canvas, handlers) => {
    const pointers = new Map();
    let start = null;
    let isDrag = false;
    let corner = null;

    const restart = () => {
      start = { ...grip(pointers), ...handlers.view(), scroll: handlers.scroller.scrollTop };
    };

    canvas.addEventListener('pointerdown', (event) => {
      if (event.button !== 0 || pointers.size === 2) return;
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      isDrag = pointers.size > 1;
      corner = !isDrag && handlers.isArea(event) ? event : null;
      handlers.onStart();
      restart();
    });

    canvas.addEventListener('pointermove', (event) => {
      if (!pointers.has(event.pointerId)) return;
      pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      const moved = grip(pointers);
      isDrag = isDrag || Math.hypot(moved.x - start.x, moved.y - start.y) > minDragPx;
      if (!isDrag) return;
      if (corner) {
        handlers.onArea(corner, event);
        return;
      }

      // The time under the fingers stays under them.
      const box = canvas.getBoundingClientRect();
      const span = start.to - start.from;
      const newSpan = span * (start.distance / moved.distance);
      const anchor = start.from + ((start.x - box.left) / box.width) * span;
      const from = anchor - ((moved.x - box.left) / box.width) * newSpan;
      handlers.show(from, from + newSpan);

      if (event.pointerType === 'mouse') {
        handlers.scroller.scrollTop = start.scroll - moved.y + start.y;
      }
    });

    const release = (event) => {
      if (!pointers.delete(event.pointerId)) return;
      if (pointers.size) restart();
      else if (corner && isDrag) handlers.onArea(corner, event, true);
      else if (!isDrag && event.type === 'pointerup') handlers.onClick(event);
    };
    canvas.addEventListener('pointerup', release);
    canvas.addEventListener('pointercancel', release);
  };
})();
