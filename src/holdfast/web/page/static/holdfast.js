"use strict";
(() => {
  const base = document.body.dataset.base;
  const version = document.body.dataset.version;

  // --- what is refreshed keeps what the reader has opened and typed
  const keeps = Idiomorph.defaults.callbacks;
  keeps.beforeNodeMorphed = (old) => !(old.nodeType === 1 && old.hasAttribute("data-keep"));
  keeps.beforeAttributeUpdated = (name, node) => !(name === "open" && node.tagName === "DETAILS");

  // --- what a form has said is told once
  const address = new URL(location.href);
  if (address.searchParams.has("said")) {
    address.searchParams.delete("said");
    history.replaceState(null, "", address);
  }
  document.body.addEventListener("changed", () => document.querySelector(".said")?.remove());

  // --- a prompt that is not sent yet survives a form that comes and goes
  const drafts = () => document.querySelectorAll("[data-draft]");
  function findDrafts() {
    for (const field of drafts()) field.value = field.value || sessionStorage.getItem(field.dataset.draft) || "";
  }
  addEventListener("input", (event) => {
    if (event.target.dataset.draft) sessionStorage.setItem(event.target.dataset.draft, event.target.value);
  });
  findDrafts();
  document.body.addEventListener("htmx:afterSettle", findDrafts);

  // --- times, in the zone of the reader
  const near = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
  const far = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });
  const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
  const long = (then) => then.getFullYear() === new Date().getFullYear() ? near.format(then) : far.format(then);
  const ago = (seconds) => {
    for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60]]) if (seconds >= size) return Math.floor(seconds / size) + unit;
    return Math.max(0, Math.floor(seconds)) + "s";
  };
  function tellTimes() {
    for (const time of document.querySelectorAll("time")) {
      const then = new Date(time.dateTime);
      if (isNaN(then)) continue;
      const words = time.classList.contains("ago") ? ago((Date.now() - then) / 1000) : long(then);
      if (time.textContent !== words) time.textContent = words;
      if (!time.title) time.title = whole.format(then);
    }
  }
  tellTimes();
  setInterval(tellTimes, 5000);
  document.body.addEventListener("htmx:afterSettle", tellTimes);

  // --- news: what has changed is asked for again, several changes at once
  const shown = document.querySelector("[data-session]")?.dataset.session;
  let soon = null;
  let wanted = false;
  function hear(news) {
    wanted = wanted || news.reload || !shown || news.session === shown;
    soon = soon || setTimeout(() => {
      if (wanted) htmx.trigger(document.body, "changed");
      htmx.trigger(document.body, "counted");
      soon = null;
      wanted = false;
    }, 250);
  }
  document.body.addEventListener("htmx:afterSettle", () => {
    const badge = document.getElementById("badge");
    if (!badge) return;
    const title = document.title.replace(/^\(\d+\) /, "");
    document.title = badge.hidden ? title : `(${badge.textContent}) ${title}`;
  });
  if (document.getElementById("badge")) {
    const url = new URL(`${base}/v1/changes`, location.href).href;
    if (window.SharedWorker) {
      const worker = new SharedWorker(`${base}/static/live.js?v=${version}`, "holdfast");
      worker.port.onmessage = (message) => hear(message.data);
      worker.port.start();
      worker.port.postMessage({ url });
      addEventListener("pagehide", () => worker.port.postMessage("bye"));
      addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
    } else {
      const listen = () => {
        const source = new EventSource(url);
        source.addEventListener("change", (message) => hear(JSON.parse(message.data)));
        for (const kind of ["reload", "ready"]) source.addEventListener(kind, () => hear({ reload: true }));
        source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000); });
      };
      listen();
    }
  }

  // --- keys
  const dialog = document.getElementById("keys");
  const places = { s: "/", i: "/inbox", f: "/fleet", n: "/numbers" };
  let goes = false;
  const items = () => [...document.querySelectorAll("table.sessions .title a, article.turn h3 a, .hits > li > a, .question h2")];
  let at = -1;
  function move(step) {
    const every = items();
    if (!every.length) return;
    const here = every.indexOf(document.activeElement);
    at = Math.max(0, Math.min(every.length - 1, (here >= 0 ? here : at) + step));
    const item = every[at];
    if (item.tagName !== "A") item.tabIndex = -1;
    item.focus({ preventScroll: true });
    item.scrollIntoView({ block: "nearest" });
  }
  addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select");
    if (typing && event.key === "Enter" && (event.ctrlKey || event.metaKey) && typing.dataset.send !== undefined) typing.form.requestSubmit();
    if (typing && event.key === "Escape") typing.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (goes) {
      goes = false;
      if (places[event.key]) location.href = base + places[event.key];
      return;
    }
    switch (event.key) {
      case "j": move(1); break;
      case "k": move(-1); break;
      case "g": goes = true; break;
      case "/": event.preventDefault(); document.getElementById("find")?.focus(); break;
      case "?": dialog.showModal(); break;
    }
  });

  // --- on a phone, the conversation comes before the evidence
  const guards = document.getElementById("guards");
  if (guards && matchMedia("(max-width: 700px)").matches) guards.open = false;

  // --- copying, filters, and forms that are sent once
  addEventListener("click", async (event) => {
    const copies = event.target.closest("[data-copy]");
    if (!copies) return;
    await navigator.clipboard.writeText(copies.dataset.copy);
    copies.textContent = "Copied";
    setTimeout(() => { copies.textContent = "Copy"; }, 1500);
  });
  for (const select of document.querySelectorAll(".filters select")) select.addEventListener("change", () => select.form.requestSubmit());
  addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post") {
      for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
      return;
    }
    const sure = event.submitter?.dataset.sure;
    if (form.dataset.sent || (sure && !confirm(sure))) { event.preventDefault(); return; }
    form.dataset.sent = "yes";
    for (const field of form.querySelectorAll("[data-draft]")) sessionStorage.removeItem(field.dataset.draft);
  });
  addEventListener("pageshow", () => {
    for (const field of document.querySelectorAll("form :disabled")) field.disabled = false;
    for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
  });
})();
