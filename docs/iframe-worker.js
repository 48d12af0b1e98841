// A page that is opened from disk may not start a worker, and the search runs in one. Here an iframe
// of the page runs the worker's script instead.
if (location.protocol === "file:") {
  window.IFrameWorker = class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((resolve, reject) => {
        this.frame.addEventListener("load", () => {
          const inner = this.frame.contentWindow;
          inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inner.document.createElement("script");
          script.addEventListener("load", () => resolve(inner));
          script.addEventListener("error", reject);
          script.src = url;
          inner.document.body.append(script);
        }, { once: true });
      });
      document.body.append(this.frame);
    }

    postMessage(data) {
      this.ready.then(inner => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
