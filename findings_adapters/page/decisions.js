// Decisions, their undo and proposals. A change is {tasks, fields, verb, what}: findings as shown, their new values, "Dismiss", "Dismissed ".

import { decisionName, UNRESOLVED } from "./words.js";

const SHOWN = ["status", "reason", "assignee", "severity", "title", "until", "duplicateOf", "proposal"]; // fields that a user decides by
const KEPT = ["id", "etag", "updatedAt", "reportedSeverity", ...SHOWN];

const same = (one, other) => JSON.stringify(one || null) === JSON.stringify(other || null);

export const differs = (shown, now) => SHOWN.some((name) => !same(shown[name], now[name]));

/** Return the severity that triage has set, or "reported". */
export const chosenSeverity = (task) => (task.reportedSeverity ? task.severity : "reported");

/** A comment is always new. */
export const isAlready = ({ comment, ...fields }, now) =>
	!comment && Object.entries(fields).every(([name, value]) => value === undefined || same(value, name === "severity" ? chosenSeverity(now) : now[name]));

/** A new status without a reason clears the reason. */
export function decided(task, { status = task.status, reason, assignee = task.assignee, severity = chosenSeverity(task), until, duplicateOf }, etag) {
	const kept = status === task.status ? task : {};
	const original = (reason ?? kept.reason) === kept.reason && kept.duplicateOf;
	const reported = task.reportedSeverity ?? task.severity;
	return {
		...task,
		status,
		reason: reason ?? kept.reason ?? null,
		assignee: assignee || null,
		...(severity === "reported" ? { severity: reported, reportedSeverity: null } : { severity, reportedSeverity: reported }),
		until: (until ?? kept.until) || null,
		duplicateOf: duplicateOf || original || null,
		proposal: (UNRESOLVED.includes(status) && task.proposal) || null,
		etag,
	};
}

/** Neither a comment, nor a reason or an original without a new status, can be undone. */
export function canUndo({ tasks, fields: { status, reason, assignee, severity, duplicateOf } }) {
	const isStuck = (task) => task.status === status && ((reason && !task.reason) || (duplicateOf && !task.duplicateOf));
	return tasks.length > 0 && (status ?? assignee ?? severity) !== undefined && !tasks.some(isStuck);
}

/** Group findings by their fields for a change, and return [fields, tasks] of each group. */
function groupedBy(tasks, fieldsOf) {
	const groups = new Map();
	for (const task of tasks) {
		const name = JSON.stringify(fieldsOf(task));
		if (!groups.has(name)) groups.set(name, []);
		groups.get(name).push(task);
	}
	return [...groups].map(([name, members]) => [JSON.parse(name), members]);
}

/** Return one change for each former state. */
export function wayBack(before, after, { status, assignee, severity, until }) {
	const groups = groupedBy(before.map((each, index) => [each, after[index]]), ([each]) => ({
		...(status !== undefined && {
			status: each.status,
			reason: each.reason || undefined,
			until: each.until || (until ? "" : undefined),
			duplicateOf: each.duplicateOf || undefined,
		}),
		...(assignee !== undefined && { assignee: each.assignee ?? "" }),
		...(severity !== undefined && { severity: chosenSeverity(each) }),
	}));
	return groups.map(([fields, pairs]) => ({ tasks: pairs.map(([, task]) => task), fields, verb: "Undo", what: "Undone ", undoes: true }));
}

const VERBS = { resolved: { verb: "Resolve", what: "Resolved " }, dismissed: { verb: "Dismiss", what: "Dismissed " } };
const valuesOf = ({ status, reason, duplicateOf, until }) => ({ status, reason, duplicateOf, until });

/** Group findings by what is proposed for them, without its comment. Return {id, title, values, tasks} of each group, in an order that stays. */
export const groupProposals = (tasks) => groupedBy(tasks, ({ proposal }) => valuesOf(proposal))
	.map(([values, members]) => ({ id: JSON.stringify(values), title: decisionName(values), values, tasks: members }))
	.sort((one, other) => (one.id < other.id ? -1 : 1));

/** Return the changes that accept the proposals for findings. */
export const acceptances = (tasks) => groupedBy(tasks, ({ proposal }) => ({ ...valuesOf(proposal), comment: proposal.comment }))
	.map(([fields, members]) => ({ tasks: members, fields, ...VERBS[fields.status] }));

/** Return the latest verification of each success criterion by its text, and of the whole finding under null. */
export const latestVerifications = (history, latest) =>
	new Map([...history.filter(({ event }) => event === "verified"), latest].filter(Boolean).map((each) => [each.criterion ?? null, each]));

/** Return a change to store, without large fields. It is announced once it is sent. */
export const keepable = ({ way, ...change }) => ({ ...change, tasks: change.tasks.map((task) => Object.fromEntries(KEPT.map((name) => [name, task[name]]))) });
