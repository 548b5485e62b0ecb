// The search runs in a Worker, which browsers do not start for a page that was opened from disk. There it runs in a
// hidden frame. The theme looks for the name IFrameWorker to find its files; its search waits for `importScripts`.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html>";
      this.ready = new Promise((resolve) => (this.frame.onload = resolve)).then(() => {
        const inner = this.frame.contentWindow;
        inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        inner.importScripts = async (...urls) => {
          for (const each of urls) await this.load(each);
        };
        return this.load(url);
      });
      document.documentElement.append(this.frame);
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = () => reject(new Error(`${url} cannot be loaded`));
        this.frame.contentDocument.head.append(script);
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
