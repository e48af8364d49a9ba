// Groups of findings: their names, filters and members.

import { count, cut } from "./words.js";

export const GROUPINGS = { rule: "Rule", location: "File", tag: "Tag", assignee: "Assignee", targetUrl: "Target", projectType: "Type" };

/** Return the filters of a group within a filtered list. A filter that is set already stays, so the result may be larger. */
export function narrowed(filters, by, value) {
	const own = Object.entries(filtersOf(by, value) ?? {});
	const widens = (name) => ["tag", "location", "without"].includes(name) && filters[name];
	return { ...filters, ...Object.fromEntries(own.filter(([name]) => !widens(name))) };
}

/** Return a group's filters. The API has none for findings without a target. */
export function filtersOf(by, value) {
	if (value !== null) return by === "assignee" ? { assignee: value, assigned: "" } : { [by]: value };
	if (by === "assignee") return { assigned: "false", assignee: "" };
	return by === "targetUrl" ? null : { without: by };
}

/** Return whether a finding is in a group. A file's line and column do not count. */
export function isOf(by, value, task) {
	if (by === "tag") return value === null ? task.tags.length === 0 : task.tags.includes(value);
	const own = task[by] || null;
	if (by !== "location" || own === null || value === null) return own === value;
	return own.startsWith(value) && /^(:\d+){0,2}$/.test(own.slice(value.length));
}

const PHRASES = { rule: "of rule", location: "in", tag: "with tag", assignee: "assigned to", targetUrl: "of target", projectType: "of type" };

export function nameGroups(by, values, total) {
	const name = GROUPINGS[by].toLowerCase();
	const none = `without ${by === "assignee" ? "an" : "a"} ${name}`;
	const one = values[0] === null ? none : `${PHRASES[by]} ${cut(values[0], 60)}`;
	return `${count(total, "finding")} ${values.length > 1 ? `in ${values.length} groups by ${name}` : one}`;
}
