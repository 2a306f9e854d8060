'use strict';
/** What the timeline and the flame graphs have in common: a canvas, a font, black or white on it. */
profkit.canvas = (() => {
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

  let letter = 0;

  /** Write a text, cut where there is no room for it, and nothing where no letter would be left. */
  function write(context, text, x, y, pixels) {
    letter = letter || context.measureText('convolution_backward').width / 20;
    const room = Math.floor(pixels / letter);
    if (room < 3) return;
    context.fillText(text.length > room ? `${text.slice(0, room - 1)}…` : text, x, y, pixels);
  }

  return { isLight, fitted, write };
})();
