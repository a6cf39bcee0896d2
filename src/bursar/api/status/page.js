"use strict";
// Asks the service every two seconds, with the key of this tab, and shows what it says. Whatever
// comes from there is put in as text, never as HTML.
const EVERY_MS = 2000, ORGS = 8, LISTED = 24, ASKED_WHY = 8;
const at = (id) => document.getElementById(id);
const KEPT = "bursar-key";

class Refused extends Error {
  constructor(status, detail) { super(detail); this.status = status; }
}

async function ask(path) {
  const answer = await fetch("/v1" + path, {
    headers: { Authorization: "Bearer " + sessionStorage.getItem(KEPT) },
    signal: AbortSignal.timeout(10000), cache: "no-store", credentials: "omit",
  });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, body.detail || body.title || answer.statusText);
  return body;
}

// What a key may not see is left out, and not asked for again; so is what has gone meanwhile.
const forbidden = new Set();
async function maybe(path) {
  if (forbidden.has(path)) return null;
  try { return await ask(path); } catch (error) {
    if (!(error instanceof Refused) || ![403, 404].includes(error.status)) throw error;
    if (error.status === 403) forbidden.add(path);
    return null;
  }
}

// Words and figures

const credits = (micros) => (micros / 1e6).toLocaleString("en", micros && Math.abs(micros) < 1e8
  ? { minimumFractionDigits: 2, maximumFractionDigits: 4 } : { maximumFractionDigits: 0 });
const gpus = (milli) => (milli / 1000).toLocaleString("en", { maximumFractionDigits: 3 });
const TONES = { running: "good", succeeded: "good", queued: "waits", starting: "waits",
  stopping: "waits", out_of_credits: "waits", failed: "bad", expired: "bad", cancelled: "faint" };
const plain = (word) => word.replaceAll("_", " ");

function age(then) {
  const s = Math.max(0, Math.round((Date.now() - Date.parse(then)) / 1000));
  if (s < 120) return s + " s";
  return s < 7200 ? Math.round(s / 60) + " min" : Math.round(s / 3600) + " h";
}

const named = (job) =>
  job.labels.name || (job.command[0] || "").split("/").pop() || job.id.slice(0, 18);

// The estimated start and the first blocker, with the names of other jobs.
function reasons(lines, names) {
  const blocker = lines.find((line) => line.startsWith("- "));
  return [...lines.slice(0, 1), ...(blocker ? [blocker.slice(2)] : [])]
    .map((line) => line
      .replace(/[0-9a-f-]{36}\/([0-9a-f-]{36})/g, (_, id) => names.get(id) || "another job"))
    .join(" ");
}

function made(name, text, kind) {
  const one = document.createElement(name);
  if (text !== undefined) one.textContent = text;
  if (kind) one.className = kind;
  return one;
}

function row(cells) {
  const line = made("tr");
  for (const [text, kind] of cells) line.append(made("td", text, kind));
  return line;
}

// What is shown

function shownNode(node) {
  const line = made("li"), boxes = made("span", undefined, "gpus");
  let used = node.gpus * 1000 - node.free_milli_gpus;
  boxes.setAttribute("role", "img");
  boxes.setAttribute("aria-label", gpus(used) + " of " + node.gpus + " GPUs in use");
  for (let n = 0; n < Math.min(node.gpus, 64); n++, used -= 1000)
    boxes.append(made("i", undefined, used >= 1000 ? "used" : used > 0 ? "part" : ""));
  const state = node.state === "ready" ? node.gpu_type : node.gpu_type + ", " + plain(node.state);
  line.append(made("span", node.id), made("span", state, node.state === "ready" ? "about" : "about bad"));
  line.append(boxes);
  return line;
}

function shownPool(pool, nodes) {
  const card = made("div", undefined, "pool"), head = made("h3", pool.id + " ");
  const types = pool.types.map((one) =>
    gpus(one.gpus * 1000 - one.free_milli_gpus) + " of " + one.gpus + " " + one.gpu_type);
  const told = [types.join(", ") || "no nodes", pool.running + " running", pool.queued + " waiting"];
  if (pool.nodes_on_order) told.push(pool.nodes_on_order + " nodes on order");
  head.append(made("span", told.join(" · ")));
  card.append(head);
  if (nodes) {
    const list = made("ul", undefined, "nodes");
    list.append(...nodes.map(shownNode));
    card.append(list);
  }
  return card;
}

// A pool with something to look at: GPUs, jobs, or nodes that will come.
const isLively = (pool) =>
  pool.types.length + pool.queued + pool.running + pool.out_of_credits + pool.nodes_on_order > 0;

function shownTenant(tenant) {
  const of = tenant.balance, alive = tenant.alive;
  const running = alive.filter((job) => ["running", "starting", "stopping"].includes(job.state));
  const held = alive.reduce((sum, job) => sum + job.held_micros, 0);
  return row([[tenant.name], [credits(of.spendable_micros), "n"], [credits(held), "n"],
    [credits(of.used_micros), "n"], [credits(of.debt_micros), of.debt_micros ? "n bad" : "n"],
    [running.length, "n"], [alive.length - running.length, "n"]]);
}

function shownJob(job) {
  const count = job.gpus ? (job.gpus.fraction_milli ? gpus(job.gpus.fraction_milli) : job.gpus.count) : "";
  const state = plain(job.state) + (job.cancelling ? ", cancelling" : "");
  const why = [...(job.attempt || !job.told ? [plain(job.why)] : []), ...(job.told ? [job.told] : [])];
  return row([[age(job.submitted_at), "faint"], [job.org], [named(job)],
    [count + " " + (job.gpu_type || (job.gpus ? job.gpus.types.join("/") : "")), "n"],
    [state, TONES[job.state]], [why.join("; "), "why"], [job.attempt, "n"],
    [credits(job.spent_micros), "n"], [credits(job.held_micros), "n"]]);
}

function shownStates(jobs) {
  const counts = new Map();
  for (const job of jobs) counts.set(job.state, (counts.get(job.state) || 0) + 1);
  return [...counts].sort().map(([state, count]) => {
    const one = made("li", undefined, TONES[state]);
    one.append(made("b", count), " " + plain(state));
    return one;
  });
}

// What is asked

async function tenantsOf(orgs) {
  if (orgs) return orgs.items.map((org) =>
    ({ name: org.name, account: org.account_id, of: "org_id=" + org.id + "&" }));
  const accounts = (await maybe("/accounts?limit=1000"))?.items || [];
  const known = new Set(accounts.map((one) => one.id));
  return accounts.filter((one) => !known.has(one.parent_id)).slice(0, ORGS)
    .map((one) => ({ name: one.name, account: one.id, of: "" }));
}

async function lookAt(tenant) {
  const [alive, last, balance] = await Promise.all([
    ask("/jobs?" + tenant.of + "unfinished=true&limit=200"), ask("/jobs?" + tenant.of + "limit=50"),
    ask("/accounts/" + tenant.account + "/balance")]);
  const seen = new Map();
  for (const job of [...last.items, ...alive.items]) seen.set(job.id, { ...job, org: tenant.name });
  return { ...tenant, balance, alive: alive.items, jobs: [...seen.values()] };
}

async function look() {
  const [pools, orgs] = await Promise.all([ask("/pools"), maybe("/orgs?limit=" + ORGS)]);
  const busy = pools.items.filter(isLively), idle = pools.items.length - busy.length;
  const nodes = await Promise.all(busy.map((pool) => maybe("/pools/" + pool.id + "/nodes")));
  const tenants = await Promise.all((await tenantsOf(orgs)).map(lookAt));
  const jobs = tenants.flatMap((one) => one.jobs);
  const order = (one, other) => (one.submitted_at < other.submitted_at ? 1 : -1);
  const names = new Map(jobs.map((job) => [job.id, job.org + "’s " + named(job)]));
  const waits = jobs.filter((job) => job.state === "queued").sort(order);
  const rest = jobs.filter((job) => job.state !== "queued").sort(order);
  const listed = [...waits.slice(0, ASKED_WHY), ...rest].slice(0, LISTED).sort(order);
  await Promise.all(listed.filter((job) => job.state === "queued").map(async (job) => {
    const why = await maybe("/jobs/" + job.id + "/why");
    if (why) job.told = reasons(why.lines, names);
  }));
  at("pools").replaceChildren(...busy.map((pool, n) => shownPool(pool, nodes[n]?.items)));
  if (idle) at("pools").append(made("p", idle + (idle > 1 ? " pools have" : " pool has") +
    " neither nodes that can be used nor jobs", "faint"));
  at("tenants").tBodies[0].replaceChildren(...tenants.map(shownTenant));
  at("states").replaceChildren(...shownStates(jobs));
  at("jobs").tBodies[0].replaceChildren(...listed.map(shownJob));
}

// The tab's key, and when to look

function say(text, bad) {
  at("said").textContent = text;
  at("said").className = bad ? "bad" : "";
}

function open(there) {
  at("ask").hidden = there;
  at("all").hidden = at("leave").hidden = !there;
}

let turn = 0;
async function goOn(mine) {
  while (mine === turn) {
    if (!document.hidden) {
      try {
        await look();
        if (mine !== turn) return;
        open(true);
        say("as of " + new Date().toLocaleTimeString());
      } catch (error) {
        if (mine !== turn) return;
        if (error instanceof Refused && error.status === 401) return forget("the key is not valid");
        say(error instanceof Refused ? error.message : "the service does not answer; trying again", true);
      }
    }
    await new Promise((go) => setTimeout(go, EVERY_MS));
  }
}

function begin(key) {
  sessionStorage.setItem(KEPT, key.trim());
  forbidden.clear();
  say("looking");
  goOn(++turn);
}

function forget(why) {
  turn++;
  sessionStorage.removeItem(KEPT);
  open(false);
  say(why, why !== "waiting for a key");
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  begin(at("key").value);
  at("key").value = "";
});
at("leave").addEventListener("click", () => forget("waiting for a key"));
function arrive() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (given) history.replaceState(null, "", location.pathname); // not for bookmarks or shoulders
  const key = given || sessionStorage.getItem(KEPT);
  if (key) begin(key);
}
addEventListener("hashchange", arrive);
arrive();
