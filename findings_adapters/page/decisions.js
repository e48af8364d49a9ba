// Decisions and their undo. A change is {tasks, fields, verb, what}: findings as shown, their new values, "Dismiss", "Dismissed ".

const SHOWN = ["status", "reason", "assignee", "severity", "title"]; // fields that a user decides by
const KEPT = ["id", "etag", "updatedAt", ...SHOWN];

export const differs = (shown, now) => SHOWN.some((name) => (shown[name] || null) !== (now[name] || null));

/** A comment is always new. */
export const isAlready = ({ comment, ...fields }, now) =>
	!comment && Object.entries(fields).every(([name, value]) => value === undefined || (now[name] ?? null) === (value || null));

/** A new status without a reason clears the reason. */
export function decided(task, { status = task.status, reason, assignee = task.assignee }, etag) {
	const kept = status === task.status ? task.reason : null;
	return { ...task, status, reason: reason ?? kept, assignee: assignee || null, etag };
}

/** Neither a comment nor a reason without a new status can be undone. */
export function canUndo({ tasks, fields: { status, reason, assignee } }) {
	const hadNone = (task) => task.status === status && !task.reason;
	return tasks.length > 0 && (status ?? assignee) !== undefined && !(reason && tasks.some(hadNone));
}

/** Return one change for each former state. */
export function wayBack(before, after, { status, assignee }) {
	const groups = new Map();
	for (const [index, each] of before.entries()) {
		const fields = JSON.stringify({
			...(status !== undefined && { status: each.status, reason: each.reason || undefined }),
			...(assignee !== undefined && { assignee: each.assignee ?? "" }),
		});
		groups.set(fields, [...(groups.get(fields) ?? []), after[index]]);
	}
	return [...groups].map(([fields, tasks]) => ({ tasks, fields: JSON.parse(fields), verb: "Undo", what: "Undone ", undoes: true }));
}

/** Return a change to store, without large fields. */
export const keepable = (change) => ({ ...change, tasks: change.tasks.map((task) => Object.fromEntries(KEPT.map((name) => [name, task[name]]))) });
