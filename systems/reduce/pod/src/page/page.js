"use strict";
// `hosts/page/src/elements.js` stands before it.

const WINDOW_MS = 60000;
const COLOURS = ["#1668b8", "#b3541e", "#2e7d32", "#8e24aa", "#a8173c", "#00796b"];

// What has happened: when each job uploaded, and when circuits changed.
const uploads = new Map();
let moves = [];
let lines = [];
let seen = 0;
let last = null;

function replace(id, children) {
  byId(id).replaceChildren(...children);
}

// Jobs of the same servers have one colour.
const groups = new Map();
function colour(servers) {
  const key = servers.join();
  if (!groups.has(key)) groups.set(key, groups.size);
  return COLOURS[groups.get(key) % COLOURS.length];
}

function serversOf(job) {
  return [...new Set([job.declared.master, ...job.declared.workers])].sort((a, b) => a - b);
}

function rate(bytes) {
  const bits = bytes * 8;
  for (const [unit, size] of [["Gbps", 1e9], ["Mbps", 1e6], ["kbps", 1e3]]) {
    if (bits >= size) return `${(bits / size).toFixed(1)} ${unit}`;
  }
  return bits > 0 ? `${bits.toFixed(0)} bps` : "idle";
}

function take(status) {
  for (const it of status.events) {
    if (it.number <= seen) continue;
    seen = it.number;
    lines.unshift(`${(it.at_ms / 1000).toFixed(1)} s  ${it.text}`);
    if (it.event === "granted") uploads.set(it.job, { from: it.at_ms, until: null, servers: [] });
    if (it.event === "moving") moves.push(it.at_ms);
    const ends = it.event === "ended" || it.event === "dropped" || (it.event === "phase" && it.phase === "reduce");
    const upload = uploads.get(it.job);
    if (ends && upload && upload.until === null) upload.until = it.at_ms;
  }
  lines = lines.slice(0, 100);
  for (const job of status.jobs) {
    const upload = uploads.get(job.job);
    if (upload) upload.servers = serversOf(job);
    // It began before the page was opened.
    else if (job.phase === "upload") uploads.set(job.job, { from: status.now_ms, until: null, servers: serversOf(job) });
  }
  const oldest = status.now_ms - WINDOW_MS;
  moves = moves.filter((at) => at > oldest);
  for (const [job, it] of uploads) if (it.until !== null && it.until < oldest) uploads.delete(job);
}

function drawPod(status) {
  const uploading = new Map();
  for (const job of status.jobs) if (job.phase === "upload") for (const it of serversOf(job)) uploading.set(it, job);
  const racks = status.circuits.racks;
  if (!racks) return replace("pod", [element("p", "", "No switch has reported its circuits.")]);
  replace("pod", racks.map((servers, tor) => {
    const slots = status.circuits.tors[tor].slots;
    const rack = element("div", slots ? "rack p" : "rack");
    rack.append(element("h3", "", slots ? `ToR ${tor}, adds up` : `ToR ${tor}`));
    const list = element("div", "servers");
    for (const it of servers) {
      const job = uploading.get(it);
      const box = element("div", job ? "server up" : "server");
      if (job) box.style.background = colour(serversOf(job));
      box.append(element("b", "", `server ${it}`), element("small", "", job ? `job ${job.job}, ${rate(status.sent[it])}` : rate(status.sent[it])));
      list.append(box);
    }
    rack.append(list);
    return rack;
  }));
}

function drawTimeline(status) {
  const rows = [...groups.entries()];
  const height = 24 * Math.max(rows.length, 1) + 22;
  const drawing = svg("svg", { viewBox: `0 0 900 ${height}`, role: "img", "aria-label": "uploads of the last minute" });
  const x = (at) => 110 + (790 * (at - status.now_ms + WINDOW_MS)) / WINDOW_MS;
  rows.forEach(([servers, row]) => {
    drawing.append(svg("text", { x: 0, y: 24 * row + 16 }, `servers ${servers.length > 14 ? servers.slice(0, 13) + "…" : servers}`));
  });
  for (const [job, it] of uploads) {
    if (!it.servers.length) continue;
    const fill = colour(it.servers);
    const row = groups.get(it.servers.join());
    const from = Math.max(x(it.from), 110);
    const width = Math.max(x(it.until === null ? status.now_ms : it.until) - from, 1.5);
    const bar = svg("rect", { x: from, y: 24 * row + 3, width, height: 18, fill });
    bar.append(svg("title", {}, `job ${job}`));
    drawing.append(bar);
  }
  for (const at of moves) {
    const mark = svg("line", { x1: x(at), x2: x(at), y1: 0, y2: height - 18, stroke: "currentColor", "stroke-dasharray": "3 3" });
    drawing.append(mark);
  }
  for (let back = 0; back <= 60; back += 10) {
    const at = x(status.now_ms - back * 1000);
    drawing.append(svg("text", { x: at, y: height - 4, "text-anchor": back ? "middle" : "end" }, back ? `-${back} s` : "now"));
  }
  replace("timeline", [drawing]);
}

function draw(status) {
  const state = byId("state");
  const problem = status.problem || (status.standing === "standby" ? "another controller commands" : status.standing === "alone" ? "no switch follows this controller" : "");
  state.textContent = problem || `commands, term ${status.term}, ${status.circuits.version} changes of circuits`;
  state.className = problem ? "bad" : "";
  drawPod(status);
  drawTimeline(status);
  replace("rows", status.jobs.slice(0, 200).map((job) => {
    const row = element("tr");
    for (const text of [job.job, job.declared.name, job.tenant, serversOf(job).join(", "), job.phase, job.grant ? job.grant.slots : ""]) row.append(element("td", "", text));
    return row;
  }));
  replace("steps", status.plan.steps.map((it) => {
    const text = `${it.racks.map((rack) => rack.join(" ")).join(" | ")}${it.uploads.length ? `, job ${it.uploads.join(", ")}` : ""}`;
    return element("div", it.moves ? "step moves" : "step", text);
  }));
  replace("switches", status.agents.map((it) => element("li", "", `${it.name}: ${it.problem || (it.is_up ? "reports" : "silent")}${it.has_circuits ? ", changes circuits" : ""}${it.tors.length ? `, ToRs ${it.tors.join(", ")}` : ""}`)));
  replace("lines", lines.map((line) => element("li", "", line)));
}

function show(data) {
  const status = JSON.parse(data);
  // A controller that has restarted begins again.
  if (last !== null && status.now_ms < last) {
    uploads.clear();
    moves = [];
    lines = [];
    seen = 0;
  }
  last = status.now_ms;
  take(status);
  draw(status);
}

function silent() {
  const state = byId("state");
  state.textContent = "the controller does not answer";
  state.className = "bad";
}

// A source of events sends no token, so a tenant's page reads the stream itself.
async function follow(token) {
  try {
    const answer = await fetch("events", { headers: { Authorization: `Bearer ${token}` } });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      const events = (rest + piece.value).split("\n\n");
      rest = events.pop();
      for (const event of events) if (event.startsWith("data: ")) show(event.slice(6));
    }
  } catch (error) {
    console.warn(error);
  }
  silent();
  setTimeout(follow, 1000, token);
}

// What follows `#` stays in the browser.
if (location.hash.length > 1) {
  follow(location.hash.slice(1));
} else {
  const source = new EventSource("events");
  source.onmessage = (event) => show(event.data);
  source.onerror = silent;
}
