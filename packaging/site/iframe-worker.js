// Runs the search from file://, where browsers refuse workers: a frame takes the worker's place.
// The theme would load such a script from another host.
if (location.protocol === "file:") {
  // These two run in the frame.
  const post = (message) => parent.postMessage(message, "*");
  const load = (...urls) =>
    urls.reduce(
      (before, url) =>
        before.then(
          () =>
            new Promise((loaded) => {
              const script = document.createElement("script");
              script.src = url;
              script.onload = loaded;
              document.body.appendChild(script);
            }),
        ),
      Promise.resolve(),
    );

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inner = this.frame.contentWindow;
      inner.document.open();
      inner.document.write(
        `<body><script>postMessage = ${post}; importScripts = ${load}</script><script src="${url}"></script>`,
      );
      inner.document.close();
      // Set here, because `open` removes handlers.
      this.ready = new Promise((loaded) => (inner.onload = loaded));
      addEventListener("message", (event) => {
        if (event.source !== inner) return;
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        this.onmessage?.(message);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
