'use strict';
/** Canvas helpers of all drawings on canvases: size, font, colours, readable text. */
profkit.canvas = (() => {
  const font = '11px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif';

  const parts = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));

  /** A colour between two of the form `#rrggbb`. */
  function mixed(from, to, share) {
    const target = parts(to);
    return `#${parts(from).map((part, i) => Math.round(part + (target[i] - part) * share)
      .toString(16).padStart(2, '0')).join('')}`;
  }

  /** Black or white, whichever is more readable on a colour `#rrggbb`. */
  function textColorOn(color) {
    const [red, green, blue] = parts(color).map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? '#000000' : '#ffffff';
  }

  /** A cleared context in CSS pixels, with the resolution of the screen. */
  function fitted(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    const [deviceWidth, deviceHeight] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== deviceWidth || canvas.height !== deviceHeight) {
      canvas.width = deviceWidth;
      canvas.height = deviceHeight;
    }
    const context = canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = font;
    context.textBaseline = 'middle';
    return context;
  }

  let letterWidth = 0;

  /** Draw a text, truncated to the available width; nothing if fewer than three letters fit. */
  function write(context, text, x, y, width) {
    letterWidth = letterWidth || context.measureText('convolution_backward').width / 20;
    const room = Math.floor(width / letterWidth);
    if (room < 3) return;
    context.fillText(text.length > room ? `${text.slice(0, room - 1)}…` : text, x, y, width);
  }

  /** Show a tooltip beside the pointer, within a box, and above the pointer where it is too low. */
  function showTip(tip, box, event) {
    tip.hidden = false;
    const left = Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 4);
    const isAbove = event.clientY - box.top + 18 + tip.offsetHeight > box.height + 120;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${event.clientY - box.top + (isAbove ? -tip.offsetHeight - 10 : 18)}px`;
  }

  /** Draw again where the window moves to a screen of another resolution. */
  function watchResolution() {
    const same = window.matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`);
    same.addEventListener('change', () => {
      const detail = { dark: document.documentElement.dataset.theme === 'dark' };
      window.dispatchEvent(new CustomEvent('profkit:theme', { detail }));
      watchResolution();
    }, { once: true });
  }
  watchResolution();

  return { mixed, textColorOn, fitted, write, showTip };
})();
