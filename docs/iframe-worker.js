// Browsers start no worker from a file. On pages that are opened as files, the theme's search runs in
// a hidden frame instead, which answers messages as a worker does.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<body></body>";
      this.scope = new Promise((resolve) => {
        frame.addEventListener("load", () => resolve(this.load(frame, address)), { once: true });
      });
      document.body.append(frame);
    }

    async load(frame, address) {
      const scope = frame.contentWindow;
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      script.src = new URL(address, document.baseURI);
      const loaded = new Promise((resolve) => script.addEventListener("load", resolve));
      frame.contentDocument.body.append(script);
      await loaded;
      return scope;
    }

    async postMessage(data) {
      const scope = await this.scope;
      scope.dispatchEvent(new scope.MessageEvent("message", { data }));
    }
  };
}
