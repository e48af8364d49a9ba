// The queue that sends changes (`decisions.js`) to the service, and undo.

import { API, isPassing, pathOf } from "./api.js";
import { canUndo, decided, differs, isAlready, keepable, wayBack } from "./decisions.js";
import { createStore, keepAs, readKept } from "./lib.js";
import { count, number, object } from "./words.js";

const UNSENT = `findings:unsent:${API.pathname}`;
const MOST_AT_ONCE = 1000; // the service's limit of findings per request
const MOST_UNDONE = 20;
export const UNDO_TIME = 10_000; // milliseconds in which an undo is offered

const makeKey = () => crypto.getRandomValues(new Uint32Array(4)).join("-"); // randomUUID requires TLS
const idsOf = (tasks) => tasks.map(({ id }) => id);

// Stores: toast {text, undo, cancel}; changed: ids of the last saved change; conflicts {change, others: findings as others left them};
// unsent: changes to retry; pending: ids of unsaved changes.
export function createChanges(api) {
	const toast = createStore({ text: "" });
	const changed = createStore([]);
	const conflicts = createStore([]);
	const unsent = createStore([]);
	const sending = createStore(false);
	const pending = createStore(new Set());
	const queue = new Set(); // changes without a response
	const held = []; // decisions that undo drops, until their time is over: {tasks, parts: changes, timer}
	const undoable = []; // the changes that undo a decision, one list per decision
	const later = new Map(); // saved findings, by the ETag that a view shows until it reloads
	let last = Promise.resolve();
	let timer;

	const say = (text, more) => toast.set({ text, ...more });
	const sayError = (error) => error.name === "AbortError" || say(error.message);
	const updatePending = () => pending.set(new Set([...queue, ...unsent.get(), ...held].flatMap(({ tasks }) => idsOf(tasks))));

	const present = (task) => (later.has(task.etag) ? present(later.get(task.etag)) : task);

	function follow(task, next) {
		if (task.etag !== next.etag) later.set(task.etag, next);
		return next;
	}

	/** Read the findings that an error points to; deleted ones are null. */
	async function meet(tasks, { errors = [] }) {
		const ids = errors.map(({ pointer = "" }) => pointer.split("/")).flatMap(([, member, name]) =>
			(member === "ids" ? (tasks[name]?.id ?? []) : member === "ifMatch" ? name : []));
		const read = (id) => api.get(pathOf("tasks", id)).catch((error) => (error.status === 404 ? null : Promise.reject(error)));
		return new Map(await Promise.all(ids.map(async (id) => [id, await read(id)])));
	}

	/** Delete proposals, for which the API has no request for several. An error's `left` is the unsaved part. */
	async function reject(change) {
		for (const [index, { id }] of change.tasks.entries()) {
			try {
				await api.request("DELETE", pathOf("tasks", id, "/proposal"));
			} catch (error) {
				if (error.status === 404) continue; // it is gone
				throw Object.assign(error, { left: { ...change, tasks: change.tasks.slice(index) } });
			}
		}
		if (!change.way) changed.set(idsOf(change.tasks));
	}

	/** Send a change in batches, up to a conflict. An error's `left` is the unsaved part. */
	async function deliver(change) {
		if (change.rejects) return reject(change);
		const { fields, undoes, what } = change;
		const announce = change.way ? () => {} : say; // a part of a decision was announced before
		const [before, after, others] = [[], [], new Map()];
		const isDecision = Object.entries(fields).some(([name, value]) => name !== "comment" && value !== undefined); // a comment overwrites nothing
		const canGoBack = () => !undoes && canUndo({ tasks: before, fields });
		let left = { ...change, tasks: change.tasks.map(present).filter((task) => !isAlready(fields, task)) };
		const total = count(left.tasks.length, "finding");
		let end = "";
		try {
			while (left.tasks.length) {
				left.key ??= makeKey();
				const [lot, rest] = [left.tasks.slice(0, MOST_AT_ONCE), left.tasks.slice(MOST_AT_ONCE)];
				const cancel = () => {
					end = ` of ${total}. Cancelled.`;
					left.tasks = lot; // its request cannot be recalled
					rest.length = 0;
					announce("Cancelling…");
				};
				if (before.length || rest.length) announce(`${what}${number(before.length)} of ${total}…`, { cancel: rest.length > 0 && !undoes && cancel });
				const ifMatch = Object.fromEntries(lot.map(({ id, etag }) => [id, etag]));
				const body = { ids: Object.keys(ifMatch), ifMatch, ...fields };
				try {
					const { data } = await api.request("PATCH", "tasks", { body, headers: { "Idempotency-Key": left.key } });
					before.push(...lot);
					after.push(...lot.map((task, index) => follow(task, decided(task, fields, data.tasks[index].etag))));
					left = { ...left, tasks: rest, key: undefined, goesOn: true };
				} catch (error) {
					const met = await meet(lot, error);
					if (!met.size || (error.code !== "changed_meanwhile" && [...met.values()].every(Boolean))) throw error;
					const isKnown = [...met.keys()].every((id) => others.has(id));
					const [ours, theirs] = [[], []];
					for (const task of lot) {
						const now = met.get(task.id);
						if (now === null || (now && isAlready(fields, now))) continue;
						if (now && isDecision && differs(task, now)) others.set(task.id, now);
						if (others.has(task.id)) theirs.push(task);
						else ours.push(now ? follow(task, { ...task, etag: now.etag }) : task);
					}
					left = { ...left, tasks: [...ours, ...theirs, ...rest], key: undefined }; // theirs last: a response lists only the first 100
					if (isKnown && theirs.length) {
						conflicts.set([...conflicts.get(), { change: { ...left, way: undefined }, others: theirs.map(({ id }) => others.get(id)) }]);
						changed.set(idsOf([...before, ...theirs]));
						return announce("");
					}
				}
			}
			const done = end ? number(before.length) + end : `${object(before)}.`;
			announce(undoes ? "Undone." : before.length ? what + done : "Nothing changed.", { undo: canGoBack() });
			if (!change.way) changed.set(idsOf(end ? before : change.tasks));
		} catch (error) {
			error.left = left;
			announce("");
			if (before.length) changed.set(idsOf(before));
			throw error;
		} finally {
			if (canGoBack()) {
				const way = change.way ?? ((change.goesOn && undoable.pop()) || []); // of all parts of the decision
				way.push(...wayBack(before, after, fields));
				if (!undoable.includes(way)) undoable.push(way);
				undoable.splice(0, undoable.length - MOST_UNDONE);
			}
		}
	}

	function tryLater(error) {
		clearTimeout(timer);
		timer = setTimeout(sendUnsent, 1000 * Math.max(error?.retryAfter ?? 0, 5));
	}

	function keep(change, error) {
		unsent.set([...unsent.get(), keepable(change)]);
		say("");
		tryLater(error);
	}

	function enqueue(change) {
		queue.add(change);
		updatePending();
		const sent = last.then(() => (unsent.get().length ? keep(change) : deliver(change))).catch((error) => {
			if (!isPassing(error)) throw error;
			keep(error.left, error);
		}).finally(() => {
			queue.delete(change);
			updatePending();
		});
		last = sent.catch(() => {});
		return sent;
	}

	/** Queue a change; it becomes unsent if the service cannot be reached. :throws Refusal: */
	function carryOut(change) {
		for (const decision of [...held]) release(decision);
		return enqueue(change);
	}

	/** Hold a decision that the service cannot undo, until the time for an undo is over or another change is made. */
	function hold(parts, text) {
		const decision = { parts, tasks: parts.flatMap(({ tasks }) => tasks) };
		decision.timer = setTimeout(() => release(decision), UNDO_TIME);
		held.push(decision);
		updatePending();
		changed.set(idsOf(decision.tasks));
		say(text, { undo: true });
	}

	function drop(decision) {
		clearTimeout(decision.timer);
		held.splice(held.indexOf(decision), 1);
	}

	async function release(decision) {
		drop(decision);
		const way = [];
		const results = await Promise.allSettled(decision.parts.map((part) => enqueue({ ...part, way })));
		const failed = results.find(({ status }) => status === "rejected");
		if (failed) say(`Couldn't save ${object(decision.tasks)}. ${failed.reason.message}`);
		changed.set(idsOf(decision.tasks));
	}

	async function undo() {
		const decision = held.at(-1);
		if (decision) {
			drop(decision);
			updatePending();
			changed.set(idsOf(decision.tasks));
			return say("Undone.");
		}
		await last;
		const kept = unsent.get();
		if (kept.length > sending.get()) {
			unsent.set(kept.slice(0, -1));
			say("Undone.");
		}
		if (kept.length && !kept.at(-1).goesOn) return; // otherwise a part of it is saved
		const way = undoable.pop();
		if (!way) return say("Nothing to undo.");
		try {
			for (const change of way) await carryOut(change);
		} catch (error) {
			undoable.push(way);
			throw error;
		}
	}

	const discardFirst = () => unsent.set(unsent.get().slice(1));

	/** Send unsent changes in order, until one fails. */
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
	unsent.follow(updatePending);
	unsent.set(readKept(sessionStorage, UNSENT) ?? []);
	addEventListener("online", sendUnsent);
	addEventListener("beforeunload", (event) => queue.size + held.length + unsent.get().length + conflicts.get().length && event.preventDefault());

	return { toast, changed, conflicts, unsent, sending, pending, present, say, sayError, carryOut, hold, undo, discardFirst, sendUnsent };
}
