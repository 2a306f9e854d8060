'use strict';
/** What the timeline and the flame graphs have in common: a canvas, a font, black or white on it. */
profkit.canvas = (() => {
  const letterWidth = 6.1;
  const font = '11px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif';

  /** Whether black is read more easily than white on a colour `#rrggbb`. */
  function isLight(color) {
    const [red, green, blue] = [1, 3, 5].map((at) => {
      const part = parseInt(color.slice(at, at + 2), 16) / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179;
  }

  /** Give a canvas the pixels of the screen, and draw in those of the page. */
  function fitted(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== wide || canvas.height !== high) {
      canvas.width = wide;
      canvas.height = high;
    }
    const context = canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = font;
    context.textBaseline = 'middle';
    return context;
  }

  /** A text, cut to so many pixels; nothing where no letter would be left. */
  function cut(text, pixels) {
    const room = Math.floor(pixels / letterWidth);
    if (room < 3) return '';
    return text.length > room ? `${text.slice(0, room - 1)}…` : text;
  }

  return { letterWidth, isLight, fitted, cut };
})();
