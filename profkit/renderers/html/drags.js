'use strict';
/** What fingers and the mouse do to a canvas that shows a stretch of time: they drag, pinch and press it. */
(() => {
  const leastPx = 4;

  /** Where the fingers are: the middle between them, and how far apart they are; 1 for a single one. */
  function grip(fingers) {
    const [first, second = first] = fingers.values();
    return {
      x: (first.x + second.x) / 2,
      y: (first.y + second.y) / 2,
      apart: fingers.size < 2 ? 1 : Math.max(1, Math.hypot(second.x - first.x, second.y - first.y)),
    };
  }

  /**
   * Let the moment under a pointer, or between two fingers, follow them.
   *
   * `asked.view()` says what is shown, `asked.show(from, to)` shows another stretch; a mouse also
   * moves `asked.scroller`, which fingers scroll by themselves. `asked.began()` is told of each
   * press, and `asked.pressed(event)` of one that was no drag.
   */
  profkit.onDrags = (canvas, asked) => {
    const fingers = new Map();
    let begin = null;
    let isDrag = false;

    const follow = () => {
      begin = { ...grip(fingers), ...asked.view(), scroll: asked.scroller.scrollTop };
    };

    canvas.addEventListener('pointerdown', (event) => {
      if (event.button !== 0 || fingers.size === 2) return;
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      isDrag = fingers.size > 1;
      asked.began();
      follow();
    });

    canvas.addEventListener('pointermove', (event) => {
      if (!fingers.has(event.pointerId)) return;
      fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      const now = grip(fingers);
      isDrag = isDrag || Math.hypot(now.x - begin.x, now.y - begin.y) > leastPx;
      if (!isDrag) return;
      const box = canvas.getBoundingClientRect();
      const span = begin.to - begin.from;
      const wanted = span * (begin.apart / now.apart);
      const held = begin.from + ((begin.x - box.left) / box.width) * span;
      const from = held - ((now.x - box.left) / box.width) * wanted;
      asked.show(from, from + wanted);
      if (event.pointerType === 'mouse') asked.scroller.scrollTop = begin.scroll - now.y + begin.y;
    });

    const release = (event) => {
      if (!fingers.delete(event.pointerId)) return;
      if (fingers.size) follow();
      else if (!isDrag && event.type === 'pointerup') asked.pressed(event);
    };
    canvas.addEventListener('pointerup', release);
    canvas.addEventListener('pointercancel', release);
  };
})();
