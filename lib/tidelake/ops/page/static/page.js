// Polls every two seconds and replaces only the parts of the page that changed. Stops while the
// page is hidden. Keeps focus, open details, scroll positions and a text selection.
const EVERY = 2000;
const SLOWEST = 15000;
const root = document.documentElement;
const lost = document.getElementById("lost");
const checked = document.getElementById("checked");
const said = document.getElementById("said");
let tag = null;
let wait = EVERY;
let timer = 0;
let shown = null;

root.classList.add("js");

const partsOf = (page) => new Map([...page.querySelectorAll("[data-part]")].map((part) => [part.id, part]));
// The HTML from the server, without later changes such as opened details and updated times.
const written = new Map([...partsOf(document)].map(([id, part]) => [id, part.outerHTML]));

function ago(instant) {
  const seconds = Math.round((Date.now() - Date.parse(instant)) / 1000);
  const far = Math.abs(seconds);
  const [size, unit] = far >= 172800 ? [86400, "days"] : far >= 7200 ? [3600, "h"] : far >= 120 ? [60, "min"] : [1, "s"];
  // Non-breaking spaces, for narrow boxes.
  const text = `${Math.floor(far / size)}\u00a0${unit}`;
  return seconds < 0 ? `in\u00a0${text}` : `${text}\u00a0ago`;
}

function updateTimes() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    time.dataset.at ??= time.textContent;
    const isToday = Math.abs(Date.now() - Date.parse(time.dateTime)) < 79200000;
    const text = `${isToday ? time.dataset.at.slice(11) : time.dataset.at} (${ago(time.dateTime)})`;
    if (time.textContent !== text) time.textContent = text;
  }
}

function selects(part) {
  const selection = getSelection();
  return !selection.isCollapsed && part.contains(selection.anchorNode);
}

function swap(old, fresh) {
  const open = [...old.querySelectorAll("details[open]")].map((one) => one.id);
  const scrolled = [...old.querySelectorAll(".scroll, pre")].map((one) => [one.id, one.scrollLeft, one.scrollTop]);
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  old.replaceWith(fresh);
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  for (const [id, left, top] of scrolled) {
    const one = document.getElementById(id);
    if (one) [one.scrollLeft, one.scrollTop] = [left, top];
  }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function applyPage(page) {
  const fresh = partsOf(page);
  const current = partsOf(document);
  let isWhole = true;
  if ([...fresh.keys()].join() !== [...current.keys()].join()) {
    swap(document.getElementById("main"), page.getElementById("main"));
    for (const [id, part] of partsOf(document)) written.set(id, part.outerHTML);
  } else {
    for (const [id, part] of fresh) {
      const html = part.outerHTML;
      if (written.get(id) === html) continue;
      if (selects(current.get(id))) {
        isWhole = false;
        continue;
      }
      swap(current.get(id), part);
      written.set(id, html);
    }
  }
  const verdict = document.querySelector("#verdict h1")?.textContent.trim() ?? "";
  if (shown !== null && verdict !== shown) said.textContent = verdict;
  shown = verdict;
  document.title = page.title;
  root.dataset.state = page.documentElement.dataset.state;
  return isWhole;
}

async function ask() {
  const answer = await fetch(location.pathname, {
    cache: "no-store",
    headers: tag ? { "If-None-Match": tag } : {},
    signal: AbortSignal.timeout(10000),
  });
  if (answer.status === 200) {
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    tag = applyPage(page) ? answer.headers.get("ETag") : null;
  } else if (answer.status !== 304) {
    throw new Error(`the server answered ${answer.status}`);
  }
}

async function turn() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    await ask();
    wait = EVERY;
    lost.hidden = true;
    checked.hidden = false;
    checked.textContent = `Last checked ${new Date().toISOString().slice(11, 19)}Z.`;
  } catch {
    wait = Math.min(wait * 2, SLOWEST);
    if (lost.hidden) {
      lost.textContent = `This page shows the state of ${new Date().toISOString().slice(0, 19).replace("T", " ")}Z: its server does not answer. Restart it with: tidelake ui`;
      lost.hidden = false;
    }
  }
  updateTimes();
  clearTimeout(timer);
  timer = setTimeout(turn, wait);
}

document.addEventListener("visibilitychange", turn);
document.addEventListener("click", async (event) => {
  const button = event.target.closest(".copy");
  if (!button) return;
  const code = document.getElementById(button.dataset.copies);
  try {
    await navigator.clipboard.writeText(code.textContent);
    said.textContent = "Copied";
    button.firstChild.data = "Copied";
    setTimeout(() => { button.firstChild.data = "Copy"; }, 1500);
  } catch {
    // Without clipboard access, select the command so that it can be copied manually.
    getSelection().selectAllChildren(code);
    said.textContent = "Selected: copy it manually";
  }
});
const here = document.querySelector("nav [aria-current]");
const nav = here?.closest("nav");
if (nav) nav.scrollLeft = here.offsetLeft - nav.offsetLeft - 40;
shown = document.querySelector("#verdict h1")?.textContent.trim() ?? "";
updateTimes();
timer = setTimeout(turn, 250);
