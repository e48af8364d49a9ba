// What is decided: how it is sent, what is kept until it can be, and how it is taken back.

import { get, isPassing, pathOf, request, UNSENT } from "./api.js";
import { createStore } from "./lib.js";
import { cut } from "./words.js";

// A change is {tasks, fields, what}: findings as they were shown, what becomes of them, and what that is called.
const SHOWN = ["status", "reason", "assignee", "severity", "title"]; // what a decision was made on
const MOST_UNDONE = 20;

/** Somebody else's triage came first: the finding as it is now. */
class Conflict extends Error {
	constructor(change, now) {
		super("Somebody changed this finding meanwhile.");
		this.change = change;
		this.now = now;
	}
}

export const toast = createStore({ text: "", undo: false });
export const conflicts = createStore([]); // each a Conflict for somebody to decide about
export const changed = createStore([]); // ids of what changed last, for views to load anew

export const say = (text, undo = false) => toast.set({ text, undo });

export async function getTask(id, signal) {
	const { data, etag } = await request("GET", pathOf("tasks", id), { signal });
	return { ...data, etag };
}

const differs = (shown, now) => SHOWN.some((name) => (shown[name] || null) !== (now[name] || null));

/** Tell whether a finding is as a change would have it: an answer was lost, or two decided alike. */
async function isDone(change, now) {
	const { comment, assignee, ...state } = change.fields;
	const assigned = assignee === undefined || (now.assignee ?? "") === assignee;
	if (!assigned || !Object.entries(state).every(([name, value]) => (now[name] ?? null) === value)) return false;
	return !comment || (change.kept && (await entriesSince({ change, now })).some((entry) => entry.comment === comment));
}

// Findings by what is still shown of them, before the view has what our last decision led to.
const ours = new Map();
const nameOf = (task) => JSON.stringify([task.id, task.updatedAt, ...SHOWN.map((name) => task[name] || null)]);

function present(task) {
	while (ours.has(nameOf(task))) task = ours.get(nameOf(task));
	return task;
}

function remember(before, now) {
	ours.delete(nameOf(now));
	if (differs(before, now)) ours.set(nameOf(before), now);
}

/** Send a change of one finding, on the condition that it is as it was shown, and return its new state. */
async function sendOne(change) {
	const [shown] = change.tasks;
	const path = pathOf("tasks", shown.id);
	for (let etag = change.kept ? null : shown.etag; ; ) {
		if (!etag) {
			const now = await getTask(shown.id);
			if (await isDone(change, now)) return now;
			if (differs(shown, now)) throw new Conflict(change, now);
			etag = now.etag; // a run saw it again
		}
		try {
			const { data, etag: next } = await request("PATCH", path, { body: change.fields, match: etag });
			const now = { ...data, etag: next };
			remember(shown, now);
			return now;
		} catch (error) {
			if (error.code !== "changed_meanwhile") throw error;
			etag = null;
		}
	}
}

/** Send a change of several findings, unless one is no more as it was shown. */
async function sendMany(change) {
	const { tasks, fields, undoes } = change;
	const now = await Promise.all(tasks.map((each) => getTask(each.id).catch((error) =>
		error.status === 404 ? each : Promise.reject(error))));
	const done = await Promise.all(now.map((each) => isDone(change, each)));
	if (done.every(Boolean)) return;
	const others = undoes ? [] : now.filter((each, index) => !done[index] && differs(tasks[index], each));
	if (others.length) {
		changed.set(others.map((each) => each.id));
		throw new Error(`Nothing was changed: somebody changed “${cut(others[0].title, 60)}” meanwhile.`);
	}
	await request("PATCH", "tasks", { body: { ids: tasks.map((each) => each.id), ...fields } });
	for (const [index, each] of now.entries()) {
		const moved = (fields.status ?? each.status) !== each.status;
		remember(tasks[index], { ...each, reason: moved ? null : each.reason, ...fields, etag: null });
	}
}

const undoable = []; // lists of changes that take one back

/** Return the changes that lead back to what was shown: one for each former state. */
function wayBack({ tasks, fields }, now) {
	const groups = new Map();
	for (const each of tasks) {
		const former = {};
		if ("status" in fields) Object.assign(former, { status: each.status }, each.reason ? { reason: each.reason } : {});
		if ("assignee" in fields) former.assignee = each.assignee ?? "";
		const key = JSON.stringify(former);
		groups.set(key, [...(groups.get(key) ?? []), now ?? each]);
	}
	return [...groups].map(([key, those]) => ({ tasks: those, fields: JSON.parse(key), what: "Undo", undoes: true, many: !now }));
}

export async function undo() {
	await last.catch(() => {});
	const kept = unsent.get();
	if (kept.length > sending.get()) {
		unsent.set(kept.slice(0, -1));
		say("Undone.");
	}
	if (kept.length) return;
	const changes = undoable.pop();
	if (!changes) {
		say("There is nothing to undo.");
		return;
	}
	for (const change of changes) await carryOut(change);
}

let last = Promise.resolve();

/** Send a change after those before it, and keep what cannot be sent now. :throws Refusal */
export function carryOut(change) {
	last = last.catch(() => {}).then(() => carryOutNext(change));
	return last;
}

async function carryOutNext(change) {
	if (unsent.get().length) {
		keep(change);
		return;
	}
	try {
		await deliver(change);
	} catch (error) {
		if (!isPassing(error)) throw error;
		keep(change, error);
	}
}

/** Send a change, or have somebody decide about it who sees what came before it. */
async function deliver(asked) {
	const change = { ...asked, tasks: asked.tasks.map(present) };
	let now;
	try {
		now = await (change.tasks.length === 1 && !change.many ? sendOne : sendMany)(change);
	} catch (error) {
		if (!(error instanceof Conflict)) throw error;
		conflicts.set([...conflicts.get(), error]);
		return;
	}
	const { status, reason, assignee } = change.fields;
	const hadNone = (task) => task.status === status && !task.reason; // a reason alone can't be taken away
	const mayUndo = !change.undoes && (status || assignee !== undefined) && !(reason && change.tasks.some(hadNone));
	if (mayUndo) undoable.push(wayBack(change, now));
	undoable.splice(0, undoable.length - MOST_UNDONE);
	say(change.undoes ? "Undone." : `${change.what}.`, mayUndo);
	changed.set(change.tasks.map((each) => each.id));
}

function readUnsent() {
	try {
		return JSON.parse(sessionStorage.getItem(UNSENT)) ?? [];
	} catch {
		return [];
	}
}

export const unsent = createStore(readUnsent());
export const sending = createStore(false);
let timer;

unsent.follow((changes) => sessionStorage.setItem(UNSENT, JSON.stringify(changes)));
addEventListener("online", () => sendUnsent());
addEventListener("beforeunload", (event) => unsent.get().length && event.preventDefault());

function keep(change, error) {
	const fields = ["id", "updatedAt", ...SHOWN]; // a storage holds no evidence
	const tasks = change.tasks.map((task) => Object.fromEntries(fields.map((name) => [name, task[name]])));
	unsent.set([...unsent.get(), { ...change, tasks, kept: true }]);
	say("");
	tryLater(error);
}

function tryLater(error) {
	clearTimeout(timer);
	timer = setTimeout(sendUnsent, 1000 * Math.max(error?.retryAfter ?? 0, 5));
}

export function discardFirst() {
	unsent.set(unsent.get().slice(1));
}

/** Send what was kept, in its order, as far as that goes. */
export async function sendUnsent() {
	if (sending.get()) return;
	sending.set(true);
	try {
		while (unsent.get().length && !unsent.get()[0].refused) {
			await deliver(unsent.get()[0]);
			discardFirst();
		}
	} catch (error) {
		const [change, ...rest] = unsent.get();
		if (isPassing(error)) tryLater(error);
		else unsent.set([{ ...change, refused: error.message }, ...rest]);
	} finally {
		sending.set(false);
	}
}

/** Return the entries of a finding's history since it was shown as it was. */
export async function entriesSince({ change, now }) {
	const since = change.tasks.find(({ id }) => id === now.id).updatedAt;
	const { history } = await get(pathOf("tasks", now.id, "/history"));
	return history.filter((entry) => entry.at > since);
}
