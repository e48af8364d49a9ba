// What a decision is, and what leads back from it. A change is {tasks, fields, verb, what}: findings as they were shown,
// what becomes of them, and what that is called before ("dismiss") and after ("Dismissed: ").

const SHOWN = ["status", "reason", "assignee", "severity", "title"]; // what a decision was made on
const KEPT = ["id", "etag", "updatedAt", ...SHOWN];

export const differs = (shown, now) => SHOWN.some((name) => (shown[name] || null) !== (now[name] || null));

/** Tell whether a finding is already as `fields` would have it, so that nothing is left to say: two decided alike. */
export function isAlready({ comment, ...fields }, now) {
	return !comment && Object.entries(fields).every(([name, value]) => value === undefined || (now[name] ?? null) === (value || null));
}

/** Return what a finding is once `fields` came true. A move without a reason clears the reason. */
export function decided(task, { status = task.status, reason, assignee }, etag) {
	const moved = status !== task.status;
	const who = assignee === undefined ? task.assignee : assignee || null;
	return { ...task, status, reason: reason ?? (moved ? null : task.reason), assignee: who, etag };
}

/** Tell whether a change can be taken back: a comment can't, nor can a reason alone. */
export function canUndo({ tasks, fields: { status, reason, assignee } }) {
	const hadNone = (task) => task.status === status && !task.reason;
	return tasks.length > 0 && (status !== undefined || assignee !== undefined) && !(reason && tasks.some(hadNone));
}

/** Return the changes that lead from `after` back to `before`, in the same order: one for each former state. */
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

/** Return a change as it is kept until it can be sent: a storage holds no evidence. */
export function keepable(change) {
	const short = (task) => Object.fromEntries(KEPT.map((name) => [name, task[name]]));
	return { ...change, tasks: change.tasks.map(short) };
}
