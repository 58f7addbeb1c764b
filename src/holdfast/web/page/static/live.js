// One connection for all tabs of a browser: it says which sessions have changed.
"use strict";
const tabs = new Set();
let source = null;
let isReady = false;

function listen(url) {
  if (source && source.readyState !== EventSource.CLOSED) return;
  source = new EventSource(url);
  // a browser gives up after an answer that is no stream, as a proxy gives while the server restarts
  source.addEventListener("error", () => { if (source?.readyState === EventSource.CLOSED && tabs.size) setTimeout(() => listen(url), 3000); });
  const tell = (news) => { for (const tab of tabs) tab.postMessage(news); };
  source.addEventListener("change", (message) => tell(JSON.parse(message.data)));
  source.addEventListener("reload", () => tell({ reload: true }));
  // what has changed between a page and the beginning of the stream
  source.addEventListener("ready", () => { isReady = true; tell({ reload: true }); });
}

onconnect = (connected) => {
  const tab = connected.ports[0];
  tabs.add(tab);
  tab.onmessage = (message) => {
    if (message.data === "bye") {
      tabs.delete(tab);
      if (!tabs.size && source) { source.close(); source = null; isReady = false; }
    } else {
      listen(message.data.url);
      if (isReady) tab.postMessage({ reload: true });
    }
  };
};
