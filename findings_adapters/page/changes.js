// What is decided: how it is sent, what is kept until it can be, and how it is taken back.

import { get, isPassing, pathOf, request, UNSENT } from "./api.js";
import { createStore } from "./lib.js";

// A change is {tasks, fields, what}: findings as they were shown, what becomes of them, and what that is called.
const SHOWN = ["status", "reason", "assignee", "severity", "title", "updatedAt"]; // what a decision was made on
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
export const conflicts = createStore([]); // each a Conflict that somebody has to decide about
export const changed = createStore(0); // goes up with every change that was stored, for views to load anew

export const say = (text, undo = false) => toast.set({ text, undo });

// --- Sending ---

export async function getTask(id, signal) {
	const { data, etag } = await request("GET", pathOf("tasks", id), { signal });
	return { ...data, etag };
}

const differs = (shown, now) => SHOWN.some((name) => (shown[name] ?? null) !== (now[name] ?? null));

/** Tell whether a finding is as a change would have it: an answer was lost, or two decided alike. */
function isDone(fields, now) {
	const { comment, assignee, ...state } = fields;
	const assigned = assignee === undefined || (now.assignee ?? "") === assignee;
	return !comment && assigned && Object.entries(state).every(([name, value]) => (now[name] ?? null) === value);
}

// Findings by what is still shown of them, before the view has what our last decision led to.
const ours = new Map();
const nameOf = (task) => JSON.stringify([task.id, ...SHOWN.map((name) => task[name] ?? null)]);

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
	for (let { etag } = shown; ; ) {
		if (!etag) {
			const now = await getTask(shown.id);
			if (isDone(change.fields, now)) return now;
			if (differs(shown, now)) throw new Conflict(change, now);
			etag = now.etag; // a run has seen it again, and nothing else
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

async function sendMany({ tasks, fields }) {
	await request("PATCH", "tasks", { body: { ids: tasks.map((each) => each.id), ...fields } });
}

// --- Undoing ---

const undoable = []; // lists of changes that take one back, the latest last

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

/** Take back what was done last. */
export async function undo() {
	const changes = undoable.pop();
	if (!changes) {
		say("There is nothing to undo.");
		return;
	}
	for (const change of changes) await carryOut(change);
}

// --- Carrying out, at once or later ---

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
	const mayUndo = !change.undoes && ("status" in change.fields || "assignee" in change.fields);
	if (mayUndo) undoable.push(wayBack(change, now));
	undoable.splice(0, undoable.length - MOST_UNDONE);
	say(change.undoes ? "Undone." : `${change.what}.`, mayUndo);
	changed.set(changed.get() + 1);
}

// --- The outbox: what could not be sent yet, kept for the tab ---

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
	const fields = ["id", "etag", ...SHOWN]; // a storage holds no evidence
	const tasks = change.tasks.map((task) => Object.fromEntries(fields.map((name) => [name, task[name]])));
	unsent.set([...unsent.get(), { ...change, tasks }]);
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
	const since = change.tasks[0].updatedAt;
	const { history } = await get(pathOf("tasks", now.id, "/history"));
	return history.filter((entry) => entry.at > since);
}
