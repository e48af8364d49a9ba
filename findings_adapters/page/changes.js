// Sending, queueing and undoing changes (`decisions.js`).

import { API, isPassing, pathOf } from "./api.js";
import { canUndo, decided, differs, isAlready, keepable, wayBack } from "./decisions.js";
import { createStore, keepAs, readKept } from "./lib.js";
import { count, object } from "./words.js";

const UNSENT = `findings:unsent:${API.pathname}`;
const MOST_AT_ONCE = 1000; // findings, of one request
const MOST_UNDONE = 20;

/** Somebody else's triage came first: `others` are findings as they are now. */
class Conflict extends Error {
	constructor(change, others) {
		super(`Somebody changed ${count(others.length, "finding")} meanwhile.`);
		this.change = change;
		this.others = others;
	}
}

const makeKey = () => crypto.getRandomValues(new Uint32Array(4)).join("-"); // a UUID takes TLS

const nameOf = ({ id, etag }) => `${id} ${etag}`;

/**
 * Return what carries changes out, and the stores {toast: what was said last, changed: ids of what changed last,
 * conflicts: to be decided about, unsent: changes that wait, sending}.
 */
export function createChanges(api) {
	const toast = createStore({ text: "", undo: false });
	const changed = createStore([]);
	const conflicts = createStore([]);
	const unsent = createStore(readKept(sessionStorage, UNSENT) ?? []);
	const sending = createStore(false);
	const undoable = []; // lists of changes that take one back
	const later = new Map(); // findings as they became, by how they are shown until the view reloads
	let last = Promise.resolve();
	let timer;

	const say = (text, undo = false) => toast.set({ text, undo });
	const sayError = (error) => say(error.message);

	function present(task) {
		while (later.has(nameOf(task))) task = later.get(nameOf(task));
		return task;
	}

	function follow(task, next) {
		if (nameOf(task) !== nameOf(next)) later.set(nameOf(task), next);
		return next;
	}

	/** Return what an error points to by id, as it is now: null is deleted. */
	async function meet(tasks, { errors = [] }) {
		const ids = errors.map(({ pointer = "" }) => pointer.split("/")).flatMap(([, member, name]) =>
			(member === "ids" ? (tasks[name]?.id ?? []) : member === "ifMatch" ? name : []));
		const read = (id) => api.get(pathOf("tasks", id)).catch((error) => (error.status === 404 ? null : Promise.reject(error)));
		return new Map(await Promise.all(ids.map(async (id) => [id, await read(id)])));
	}

	/** Change all findings of a lot that are still there, or none, and return them before and after. */
	async function sendLot({ tasks, key, ...change }) {
		const others = new Map(); // decided about by others: sent last, as an answer tells of the first hundred
		while (tasks.length) {
			const ifMatch = Object.fromEntries(tasks.map(({ id, etag }) => [id, etag]));
			const body = { ids: Object.keys(ifMatch), ifMatch, ...change.fields };
			try {
				const { data } = await api.request("PATCH", "tasks", { body, headers: { "Idempotency-Key": key } });
				const after = tasks.map((task, index) => follow(task, decided(task, change.fields, data.tasks[index].etag)));
				return { before: tasks, after };
			} catch (error) {
				const met = await meet(tasks, error);
				if (error.code !== "changed_meanwhile" && [...met.values()].every(Boolean)) throw error;
				if ([...met.keys()].every((id) => others.has(id))) throw new Conflict({ ...change, tasks }, [...others.values()]);
				tasks = tasks.filter(({ id }) => !met.has(id) || (met.get(id) && !isAlready(change.fields, met.get(id))));
				for (const task of tasks) if (met.has(task.id) && differs(task, met.get(task.id))) others.set(task.id, met.get(task.id));
				const isOurs = ({ id }) => !others.has(id);
				const seenAgain = (task) => follow(task, { ...task, etag: met.get(task.id)?.etag ?? task.etag });
				tasks = [...tasks.filter(isOurs).map(seenAgain), ...tasks.filter(({ id }) => others.has(id))];
				key = makeKey();
			}
		}
		return { before: [], after: [] };
	}

	/** Make a change, or ask about conflicts. An error's `left` is what is not made. */
	async function deliver(change) {
		const { fields, undoes } = change;
		const [before, after] = [[], []];
		const made = { tasks: before, fields };
		let left = { ...change, tasks: change.tasks.map(present) };
		try {
			while (left.tasks.length) {
				left.key ??= makeKey();
				const [lot, rest] = [left.tasks.slice(0, MOST_AT_ONCE), left.tasks.slice(MOST_AT_ONCE)];
				if (before.length || rest.length) say(`${change.what}${count(before.length, "finding")} so far …`);
				const sent = await sendLot({ ...left, tasks: lot }).catch((error) => {
					if (error instanceof Conflict) error.change.tasks.push(...rest);
					throw error;
				});
				before.push(...sent.before);
				after.push(...sent.after);
				left = { ...left, tasks: rest, key: undefined, goesOn: true };
			}
			say(undoes ? "Undone." : before.length ? `${change.what}${object(before)}.` : "It was so already.", !undoes && canUndo(made));
			changed.set(change.tasks.map(({ id }) => id));
		} catch (error) {
			error.left = left;
			const others = error instanceof Conflict ? error.others : [];
			if (before.length + others.length) changed.set([...before, ...others].map(({ id }) => id));
			if (!others.length) throw error;
			conflicts.set([...conflicts.get(), error]);
			say("");
		} finally {
			if (!undoes && canUndo(made)) {
				undoable.push([...((change.goesOn && undoable.pop()) || []), ...wayBack(before, after, fields)]);
				undoable.splice(0, undoable.length - MOST_UNDONE);
			}
		}
	}

	function keep(change, error) {
		unsent.set([...unsent.get(), keepable(change)]);
		say("");
		tryLater(error);
	}

	function tryLater(error) {
		clearTimeout(timer);
		timer = setTimeout(sendUnsent, 1000 * Math.max(error?.retryAfter ?? 0, 5));
	}

	/** Make a change after earlier ones; keep what can't be sent now. :throws Refusal: */
	function carryOut(change) {
		const keepPassing = (error) => {
			if (!isPassing(error)) throw error;
			keep(error.left, error);
		};
		last = last.catch(() => {}).then(() => (unsent.get().length ? keep(change) : deliver(change).catch(keepPassing)));
		return last;
	}

	/** Undo the last decision. :throws Refusal: */
	async function undo() {
		await last.catch(() => {});
		const kept = unsent.get();
		if (kept.length > sending.get()) {
			unsent.set(kept.slice(0, -1));
			say("Undone.");
		}
		if (kept.length && !kept.at(-1).goesOn) return; // else a part of it is made
		const way = undoable.pop();
		if (!way) say("There is nothing to undo.");
		try {
			for (const change of way ?? []) await carryOut(change);
		} catch (error) {
			undoable.push(way);
			throw error;
		}
	}

	const discardFirst = () => unsent.set(unsent.get().slice(1));

	/** Send what was kept, in order, as far as that goes. */
	async function sendUnsent() {
		if (sending.get()) return;
		sending.set(true);
		try {
			while (unsent.get().length && !unsent.get()[0].refused) {
				await deliver(unsent.get()[0]);
				discardFirst();
			}
		} catch (error) {
			const refused = isPassing(error) ? undefined : error.message;
			if (!refused) tryLater(error);
			unsent.set([keepable({ ...error.left, refused }), ...unsent.get().slice(1)]);
		} finally {
			sending.set(false);
		}
	}

	unsent.follow((changes) => keepAs(sessionStorage, UNSENT, changes));
	addEventListener("online", sendUnsent);
	addEventListener("beforeunload", (event) => unsent.get().length + conflicts.get().length && event.preventDefault());

	return { toast, changed, conflicts, unsent, sending, say, sayError, carryOut, undo, discardFirst, sendUnsent };
}
