"use strict";
// `hosts/page/src/elements.js` stands before it.
(() => {
  // ---- Numbers -------------------------------------------------------------------------------------------------------------------

  const bytes = (number) => {
    let unit = 0;
    while (number >= 999.5 && unit < 6) {
      number /= 1000;
      unit += 1;
    }
    const digits = unit === 0 || number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2;
    return `${number.toFixed(digits)} ${["B", "kB", "MB", "GB", "TB", "PB", "EB"][unit]}`;
  };
  const rate = (number) => (number > 0 ? `${bytes(number)}/s` : "–");
  const duration = (seconds) => {
    const all = Math.round(seconds);
    if (all < 100) return `${all} s`;
    if (all < 6000) return `${Math.floor(all / 60)} min ${all % 60} s`;
    return `${Math.floor(all / 3600)} h ${Math.floor((all % 3600) / 60)} min`;
  };
  const percent = (share) => `${Math.floor(100 * share)} %`;
  const hosts = (number) => (number === 1 ? "1 host" : `${count(number)} hosts`);
  const order = (address) => address.split(".").reduce((sum, byte) => sum * 256 + Number(byte), 0);

  const PHASES = {
    checking: "checks its target", fetching: "fetching", writing: "writing", lingering: "complete, serves",
    done: "complete", failed: "failed", interrupted: "interrupted", gone: "gone",
  };
  const LIMITS = { none: "", network: "network", disk: "disk", silence: "no chunks" };
  const isOver = (phase) => ["done", "failed", "interrupted", "gone"].includes(phase);
  const isComplete = (phase) => phase === "done" || phase === "lingering";

  // ---- Elements ------------------------------------------------------------------------------------------------------------------

  /** Gives a table body as many rows as are wanted. */
  const resize = (body, length, make) => {
    while (body.rows.length > length) body.deleteRow(-1);
    while (body.rows.length < length) body.append(make());
  };
  const track = () => {
    const node = element("div", "track");
    node.append(element("div", "kept"), element("div", "written"), element("div", "fetched"));
    return node;
  };
  const fill = (node, chunks, kept, written, have) => {
    const shares = [kept, Math.max(written - kept, 0), Math.max(have - Math.max(written, kept), 0)];
    shares.forEach((share, at) => {
      const width = `${((100 * share) / Math.max(chunks, 1)).toFixed(2)}%`;
      if (node.children[at].style.width !== width) node.children[at].style.width = width;
    });
  };

  // ---- State ---------------------------------------------------------------------------------------------------------------------

  let shown = null;
  let shownAt = 0;
  let connection = "connecting";
  let chosen = null;
  let sorting = { key: "address", descending: false };

  // ---- Totals and images ---------------------------------------------------------------------------------------------------------

  const tiles = new Map();
  const tile = (label, value, note, className = "") => {
    if (!tiles.has(label)) {
      const node = element("div", "tile");
      node.append(element("div", "label", label), element("div", "value"), element("div", "note"));
      byId("tiles").append(node);
      tiles.set(label, node);
    }
    const node = tiles.get(label);
    setClass(node, `tile ${className}`.trim());
    set(node.children[1], value);
    set(node.children[2], note);
  };

  const showTotals = (status) => {
    const phases = Object.entries(status.phases);
    const sum = (is) => phases.reduce((all, [phase, number]) => all + (is(phase) ? number : 0), 0);
    const complete = sum(isComplete);
    const failed = sum((phase) => isOver(phase) && !isComplete(phase));
    const active = status.clients_total - complete - failed;
    tile("Clients complete", `${count(complete)} of ${count(status.clients_total)}`, `${count(active)} at work, ${count(failed)} ended without the image`, failed > 0 ? "bad" : "");
    tile("Slow", count(status.slow), status.slow > 0 ? "the reason is in the list" : "nobody", status.slow > 0 ? "warn" : "");
    const one = status.images.length === 1 ? status.images[0] : null;
    const chunks = `${count(status.chunks_sent)} chunks, ${bytes(status.bytes_sent)}`;
    tile("Sent by the server", one ? `${one.copies.toFixed(2)} copies` : bytes(status.bytes_sent), chunks);
    tile("Server sends", rate(status.send_rate), "in the last second");
    const times = status.send_rate > 0 && status.receive_rate > status.send_rate ? `${(status.receive_rate / status.send_rate).toFixed(1)} times what the server sends` : "in the last second";
    tile("Clients receive", rate(status.receive_rate), times);
    tile("Requests here", count(status.requests), `${count(status.redirected)} chunks redirected, ${count(status.returned)} returned`);
    const session = one?.multicast;
    if (session) tile("Multicast", session.group, `${count(session.blocks_sent)} blocks, ${count(session.partial_requests)} of ${count(session.requests)} requests for parts of chunks`, session.unsent > 0 ? "warn" : "");
    const wrong = status.damaged + status.barred + status.refused + status.unsent;
    tile("Damaged chunks", count(status.damaged), `${hosts(status.barred)} barred, ${count(status.refused)} messages refused, ${count(status.unsent)} not sent`, wrong > 0 ? "warn" : "");
    if (status.absent_total > 0 || tiles.has("Absent")) tile("Absent", count(status.absent_total), "hosts that have not been here", status.absent_total > 0 ? "warn" : "");
    document.title = status.clients_total > 0 ? `${complete}/${status.clients_total} · Rackweave images` : "Rackweave images";
  };

  const showImages = (status) => {
    const body = byId("images").tBodies[0];
    resize(body, status.images.length, () => {
      const row = document.createElement("tr");
      for (const name of ["name", "number", "number", "number", "", "number", "number", "", "number"]) row.append(element("td", name));
      const progress = element("div", "progress");
      progress.append(track(), element("span"));
      row.cells[7].append(progress);
      return row;
    });
    status.images.forEach((image, at) => {
      const { cells } = body.rows[at];
      set(cells[0], image.name + (image.signed ? " (signed)" : ""));
      cells[0].title = image.name;
      set(cells[1], bytes(image.bytes));
      set(cells[2], bytes(image.stored));
      set(cells[3], count(image.chunks));
      set(cells[4], `${image.root.slice(0, 16)}…`);
      cells[4].title = image.root;
      set(cells[5], count(image.chunks_sent));
      set(cells[6], image.copies.toFixed(2));
      const all = image.chunks * image.clients;
      fill(cells[7].firstChild.firstChild, all, 0, image.written, image.written);
      set(cells[7].firstChild.lastChild, all > 0 ? percent(image.written / all) : "");
      set(cells[8], `${count(image.complete)} of ${count(image.clients)}`);
    });
    const select = byId("image");
    byId("image-label").hidden = status.images.length < 2;
    const names = status.images.map((image) => image.name);
    if (JSON.stringify(names) !== select.dataset.names) {
      select.dataset.names = JSON.stringify(names);
      select.replaceChildren(new Option("all", ""), ...names.map((name) => new Option(name, `=${name}`)));
    }
  };

  // ---- Clients -------------------------------------------------------------------------------------------------------------------

  /** Of what has content: empty chunks are not fetched. */
  const share = (client) => (client.chunks > client.empty ? (client.have - client.empty) / (client.chunks - client.empty) : 1);
  const COLUMNS = [
    { key: "address", label: "Address", value: (client) => order(client.address) },
    { key: "image", label: "Image", value: (client) => client.image, className: "name" },
    { key: "phase", label: "Phase", value: (client) => Object.keys(PHASES).indexOf(client.phase), className: "phase" },
    { key: "progress", label: "Progress", value: share },
    { key: "receives", label: "Receives", value: (client) => client.receive_rate, className: "number" },
    { key: "sends", label: "Sends", value: (client) => client.send_rate, className: "number" },
    { key: "sources", label: "From", value: (client) => client.sources, className: "number" },
    { key: "server", label: "By server", value: (client) => client.by_server, className: "number" },
    { key: "sent", label: "Chunks sent", value: (client) => client.sent, className: "number" },
    { key: "retries", label: "Again", value: (client) => client.retries, className: "number" },
    { key: "damaged", label: "Damaged", value: (client) => client.damaged, className: "number" },
    { key: "limit", label: "Limited by", value: (client) => client.limit },
    { key: "age", label: "Reported", value: (client) => (isOver(client.phase) ? -1 : client.age_ms), className: "number" },
  ];
  const TITLES = {
    sources: "The number of hosts, the server included, from which it has chunks. At most 256 are counted.",
    server: "Chunks that came from the server",
    retries: "Chunks that were requested again",
    age: "Time since its last report. Clients report each second.",
  };

  const head = byId("clients").tHead.rows[0];
  for (const column of COLUMNS) {
    const cell = element("th", column.className === "number" ? "number" : "");
    const button = element("button", "", column.label);
    button.type = "button";
    button.title = TITLES[column.key] || `Sort by: ${column.label}`;
    button.addEventListener("click", () => {
      const descending = sorting.key === column.key ? !sorting.descending : false;
      sorting = { key: column.key, descending };
      showClients(shown);
    });
    cell.append(button);
    head.append(cell);
  }

  const left = (client) => {
    const fetched = client.have - client.kept - client.empty;
    if (client.phase !== "fetching" || fetched < 8 || client.elapsed_ms < 2000) return "";
    return `, ${duration(((client.chunks - client.have) * client.elapsed_ms) / fetched / 1000)} left`;
  };

  const listed = (status) => {
    const image = byId("image").value;
    const words = byId("find").value.trim().toLowerCase();
    const has = (client) => [client.address, PHASES[client.phase], client.slow || "", client.image].some((text) => text.toLowerCase().includes(words));
    const clients = status.clients.filter((client) => (image === "" || `=${client.image}` === image) && (words === "" || has(client)));
    const column = COLUMNS.find(({ key }) => key === sorting.key);
    const direction = sorting.descending ? -1 : 1;
    const slowFirst = byId("slow-first").checked;
    const keyed = clients.map((client) => ({ client, key: column.value(client), slow: client.slow ? 0 : 1, address: order(client.address) }));
    keyed.sort((one, other) => {
      if (slowFirst && one.slow !== other.slow) return one.slow - other.slow;
      if (one.key !== other.key) return (one.key < other.key ? -1 : 1) * direction;
      return one.address - other.address;
    });
    return keyed.map(({ client }) => client);
  };

  const clientRow = () => {
    const row = document.createElement("tr");
    for (const column of COLUMNS) row.append(element("td", column.className || ""));
    const button = element("button");
    button.type = "button";
    button.title = "Show from whom it receives, and to whom it sends";
    button.addEventListener("click", () => choose(button.textContent));
    row.cells[0].append(button);
    const progress = element("div", "progress");
    progress.append(track(), element("span"));
    row.cells[3].append(progress);
    return row;
  };

  /** The row below a client's: why it is slow. It stays in view when the table is scrolled sideways. */
  const reasonRow = () => {
    const row = document.createElement("tr");
    const cell = element("td");
    cell.colSpan = COLUMNS.length;
    cell.append(element("div", "reason"));
    row.append(cell);
    return row;
  };

  const showClients = (status) => {
    const clients = listed(status);
    const body = byId("clients").tBodies[0];
    resize(body, 2 * clients.length, () => (body.rows.length % 2 === 0 ? clientRow() : reasonRow()));
    const several = status.images.length > 1;
    clients.forEach((client, at) => {
      const row = body.rows[2 * at];
      const why = body.rows[2 * at + 1];
      const { cells } = row;
      setClass(row, `${client.phase}${client.slow ? " slow" : ""}`);
      setClass(why, `why ${row.className}`);
      why.hidden = !client.slow;
      set(why.cells[0].firstChild, client.slow || "");
      set(cells[0].firstChild, client.address);
      set(cells[1], client.image);
      set(cells[2], PHASES[client.phase] + (client.serves ? "" : " (serves nobody)"));
      fill(cells[3].firstChild.firstChild, client.chunks, client.kept, client.written, client.have);
      set(cells[3].firstChild.lastChild, percent(share(client)) + left(client));
      const over = isOver(client.phase);
      set(cells[4], over ? "" : rate(client.receive_rate));
      set(cells[5], over ? "" : rate(client.send_rate));
      set(cells[6], client.sources > 0 ? hosts(client.sources) : "");
      set(cells[7], count(client.by_server));
      set(cells[8], count(client.sent));
      set(cells[9], count(client.retries));
      set(cells[10], count(client.damaged));
      set(cells[11], over ? "" : LIMITS[client.limit]);
      set(cells[12], over ? "" : client.age_ms < 1500 ? "now" : `${duration(client.age_ms / 1000)} ago`);
      cells[1].hidden = !several;
    });
    [...head.cells].forEach((cell, at) => {
      const { key } = COLUMNS[at];
      cell.setAttribute("aria-sort", key !== sorting.key ? "none" : sorting.descending ? "descending" : "ascending");
      set(cell.firstChild, COLUMNS[at].label + (key !== sorting.key ? "" : sorting.descending ? " ▾" : " ▴"));
    });
    head.cells[1].hidden = !several;
    const all = status.clients_total;
    const part = status.clients.length < all ? ` The list has ${count(status.clients.length)} of ${count(all)}, those that are slow or not complete first; status.json has all.` : "";
    set(byId("listed"), (clients.length < status.clients.length ? `${count(clients.length)} of ${count(status.clients.length)} match.` : "") + part);
    byId("nobody").hidden = clients.length > 0;
    set(byId("nobody"), all > 0 ? "Nobody matches." : "No host has been here yet. To fetch: rackweave image fetch NAME --from THIS-HOST --to TARGET");
  };

  // ---- One client ----------------------------------------------------------------------------------------------------------------

  const peers = (table, chunks, server) => {
    const all = Object.entries(chunks).sort((one, other) => other[1] - one[1] || order(one[0]) - order(other[0]));
    const most = all.length > 0 ? all[0][1] : 0;
    const body = table.tBodies[0];
    resize(body, Math.min(all.length, 20) + (all.length > 20 ? 1 : 0), () => {
      const row = document.createElement("tr");
      row.append(element("td"), element("td", "number"), element("td"));
      row.cells[2].append(track());
      return row;
    });
    [...body.rows].forEach((row, at) => {
      const rest = at === 20;
      const number = rest ? all.slice(20).reduce((sum, [, chunk]) => sum + chunk, 0) : all[at][1];
      set(row.cells[0], rest ? `${all.length - 20} others` : all[at][0] + (all[at][0] === server ? " (server)" : ""));
      set(row.cells[1], count(number));
      row.cells[2].firstChild.hidden = rest;
      fill(row.cells[2].firstChild, most, 0, number, number);
    });
  };

  const showDetail = async () => {
    const address = chosen;
    if (address === null) return;
    let client;
    try {
      const response = await fetch(`clients/${encodeURIComponent(address)}`);
      if (!response.ok) return;
      client = await response.json();
    } catch {
      return; // The state above says that there is no connection.
    }
    if (chosen !== address) return;
    set(byId("detail-title"), `${address}: ${PHASES[client.phase]}`);
    const text = [
      `Image ${client.image}; ${count(client.have)} of ${count(client.chunks)} chunks, of which ${count(client.kept)} were there and ${count(client.empty)} are empty; ${count(client.written)} are written.`,
      `${bytes(client.bytes)} received in ${duration(client.elapsed_ms / 1000)}; ${count(client.retries)} chunks requested again, ${count(client.damaged)} damaged.${client.multicast ? " By multicast." : ""}`,
      client.serves ? "" : "Others are not sent to it (--holders).",
      client.slow ? `Slow: ${client.slow}.` : "",
    ];
    set(byId("detail-text"), text.filter((sentence) => sentence !== "").join(" "));
    peers(byId("detail-from"), client.from, client.server);
    peers(byId("detail-to"), client.to, client.server);
    byId("detail").hidden = false;
  };

  const choose = (address) => {
    chosen = chosen === address ? null : address;
    byId("detail").hidden = true;
    showDetail();
  };

  // ---- Who serves whom -----------------------------------------------------------------------------------------------------------

  const groupName = (group) => (group.prefix === 32 ? group.address : `${group.address}/${group.prefix}`);

  /** The drawing of one image: its ground depends on the groups, and its squares change. */
  const draw = (flows, strangers) => {
    const { groups } = flows;
    const columns = ["server", ...groups.map(groupName), ...(strangers ? ["others"] : [])];
    const side = Math.max(9, Math.min(26, Math.floor(1000 / columns.length)));
    const longest = groups.reduce((most, group) => Math.max(most, groupName(group).length), 6);
    const grouped = groups.some((group) => group.prefix < 32);
    const leftSide = 10 + 7 * (longest + (grouped ? 6 : 0));
    const top = 12 + Math.ceil(6.2 * longest);
    const width = leftSide + side * columns.length + 60;
    const height = top + side * groups.length + 4;
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Who serves whom: ${flows.image}` });
    const step = Math.max(1, Math.ceil(11 / side));
    groups.forEach((group, row) => {
      if (row % step > 0) return;
      const label = svg("text", { x: leftSide - 6, y: top + side * (row + 0.5) + 4, "text-anchor": "end" });
      label.textContent = groupName(group) + (grouped ? ` (${group.hosts})` : "");
      picture.append(label);
    });
    columns.forEach((name, column) => {
      if (column > 1 && (column - 1) % step > 0) return;
      const x = leftSide + side * (column + 0.5) + 4;
      const label = svg("text", { x, y: top - 6, transform: `rotate(-60 ${x} ${top - 6})` });
      if (column === 0) label.setAttribute("class", "of-server");
      label.textContent = name;
      picture.append(label);
    });
    picture.append(svg("rect", { class: "ground", x: leftSide, y: top, width: side * columns.length, height: side * groups.length }));
    if (!grouped) {
      groups.forEach((_, row) => {
        const [x, y] = [leftSide + side * (row + 1), top + side * row];
        picture.append(svg("line", { class: "itself", x1: x + 2, y1: y + side - 2, x2: x + side - 2, y2: y + 2 }));
      });
    }
    return { picture, columns, leftSide, top, side, squares: new Map() };
  };

  const drawings = new Map();
  const showFlows = (status) => {
    const wanted = byId("image").value;
    const all = status.flows.filter((flows) => flows.groups.length > 0 && (wanted === "" || `=${flows.image}` === wanted));
    byId("flows-section").hidden = all.length === 0;
    const keep = new Set(all.map((flows) => flows.image));
    for (const [image, drawing] of drawings) {
      if (!keep.has(image)) {
        drawing.place.remove();
        drawings.delete(image);
      }
    }
    for (const flows of all) {
      const others = flows.groups.length + 1;
      const strangers = flows.cells.some(([, column]) => column === others);
      const key = JSON.stringify([flows.groups, strangers]);
      let drawing = drawings.get(flows.image);
      if (!drawing || drawing.key !== key) {
        const place = drawing ? drawing.place : element("div");
        if (!drawing) byId("flows").append(place);
        drawing = { ...draw(flows, strangers), key, place };
        place.replaceChildren(...(status.flows.length > 1 ? [element("h3", "", flows.image)] : []), drawing.picture);
        drawings.set(flows.image, drawing);
      }
      const most = flows.cells.reduce((max, [, , chunks]) => Math.max(max, chunks), 1);
      const seen = new Set();
      const received = new Map();
      for (const [row, , chunks] of flows.cells) received.set(row, (received.get(row) || 0) + chunks);
      for (const [row, column, chunks] of flows.cells) {
        if (chunks === 0) continue;
        const at = `${row} ${column}`;
        seen.add(at);
        let square = drawing.squares.get(at);
        if (!square) {
          const { leftSide, top, side } = drawing;
          const className = column === 0 ? "cell of-server" : "cell";
          square = svg("rect", { class: className, x: leftSide + side * column + 0.5, y: top + side * row + 0.5, width: side - 1, height: side - 1 });
          drawing.picture.append(square);
          drawing.squares.set(at, square);
        }
        const shade = (0.1 + 0.9 * (Math.log1p(chunks) / Math.log1p(most))).toFixed(3);
        if (square.getAttribute("fill-opacity") !== shade) square.setAttribute("fill-opacity", shade);
        square.dataset.text = `${groupName(flows.groups[row])} has ${count(chunks)} chunks from ${drawing.columns[column]}, ${percent(chunks / received.get(row))} of what it has received`;
      }
      for (const [at, square] of drawing.squares) {
        if (!seen.has(at)) {
          square.remove();
          drawing.squares.delete(at);
        }
      }
    }
  };

  byId("flows").addEventListener("pointerover", (event) => {
    const text = event.target.dataset ? event.target.dataset.text : undefined;
    if (text) set(byId("readout"), text);
  });

  // ---- All -----------------------------------------------------------------------------------------------------------------------

  const showState = () => {
    const age = (performance.now() - shownAt) / 1000;
    const states = {
      connecting: ["", "connecting"],
      live: age > 4 ? ["lost", `no news for ${duration(age)}`] : ["live", "live"],
      lost: ["lost", "no connection to the server, trying again"],
      ended: ["ended", "the server has ended"],
    };
    const [name, text] = states[connection];
    setClass(byId("state"), `pill ${name}`.trim());
    set(byId("state"), text);
    if (!shown) return;
    const running = duration(shown.elapsed_ms / 1000);
    const last = connection === "live" ? "" : `; this is its last state, ${duration(age)} old`;
    set(byId("uptime"), `${connection === "ended" ? "ran for" : "running for"} ${running}${last}`);
  };

  const show = () => {
    byId("main").hidden = false;
    showTotals(shown);
    showImages(shown);
    showClients(shown);
    showFlows(shown);
    byId("absent-section").hidden = shown.absent_total === 0;
    const more = shown.absent_total - shown.absent.length;
    set(byId("absent"), shown.absent.join(", ") + (more > 0 ? ` and ${count(more)} others` : ""));
  };

  const news = (event, state) => {
    shown = JSON.parse(event.data);
    shownAt = performance.now();
    connection = state;
    show();
    showState();
    if (state === "live") showDetail();
  };

  const connect = () => {
    const source = new EventSource("events");
    source.addEventListener("message", (event) => news(event, "live"));
    source.addEventListener("end", (event) => news(event, "ended"));
    source.addEventListener("error", () => {
      // A server that is started again at the same place is shown.
      if (connection !== "ended") connection = "lost";
      showState();
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
    });
  };

  byId("slow-first").addEventListener("change", () => shown && showClients(shown));
  byId("find").addEventListener("input", () => shown && showClients(shown));
  byId("image").addEventListener("change", () => shown && show());
  byId("close").addEventListener("click", () => choose(chosen));
  setInterval(showState, 1000);
  connect();
})();
