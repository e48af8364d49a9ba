// Decisions and their undo. A change is {tasks, fields, verb, what}: findings as shown, their new values, and its name
// before ("dismiss") and after ("Dismissed: ").

const SHOWN = ["status", "reason", "assignee", "severity", "title"]; // what a decision was made on
const KEPT = ["id", "etag", "updatedAt", ...SHOWN];

export const differs = (shown, now) => SHOWN.some((name) => (shown[name] || null) !== (now[name] || null));

/** Tell whether `fields` already hold with nothing left to say: two decided alike. */
export function isAlready({ comment, ...fields }, now) {
	return !comment && Object.entries(fields).every(([name, value]) => value === undefined || (now[name] ?? null) === (value || null));
}

/** Return a finding after `fields`. A move without a reason clears it. */
export function decided(task, { status = task.status, reason, assignee }, etag) {
	const moved = status !== task.status;
	const who = assignee === undefined ? task.assignee : assignee || null;
	return { ...task, status, reason: reason ?? (moved ? null : task.reason), assignee: who, etag };
}

/** Tell whether a change can be undone: neither a comment nor a reason alone can. */
export function canUndo({ tasks, fields: { status, reason, assignee } }) {
	const hadNone = (task) => task.status === status && !task.reason;
	return tasks.length > 0 && (status !== undefined || assignee !== undefined) && !(reason && tasks.some(hadNone));
}

/** Return the changes from `after` back to `before`, in that order: one for each former state. */
export function wayBack(before, after, { status, assignee }) {
	const groups = new Map();
	for (const [index, each] of before.entries()) {
		const fields = {};
		if (status !== undefined) Object.assign(fields, { status: each.status }, each.reason ? { reason: each.reason } : {});
		if (assignee !== undefined) fields.assignee = each.assignee ?? "";
		const key = JSON.stringify(fields);
		groups.set(key, [...(groups.get(key) ?? []), after[index]]);
	}
	return [...groups].map(([key, tasks]) => ({ tasks, fields: JSON.parse(key), verb: "Undo", what: "Undone: ", undoes: true }));
}

/** Return a change small enough for a storage: without evidence. */
export function keepable(change) {
	const short = (task) => Object.fromEntries(KEPT.map((name) => [name, task[name]]));
	return { ...change, tasks: change.tasks.map(short) };
}
