// What findings are grouped by, and which are in a group.

export const GROUPINGS = { rule: "Rule", location: "File", tag: "Tag", assignee: "Assignee", targetUrl: "Target", projectType: "Type" };

/** Return the filters that leave a group. Those that are set already hold too, and so may leave more. */
export function narrowed(filters, by, value) {
	const own = filtersOf(by, value);
	const widens = (name) => ["tag", "location", "without"].includes(name) && filters[name];
	return { ...filters, ...Object.fromEntries(Object.entries(own ?? {}).filter(([name]) => !widens(name))) };
}

/** Return a group's filters; there is none for findings without a target. */
export function filtersOf(by, value) {
	if (value !== null) return by === "assignee" ? { assignee: value, assigned: "" } : { [by]: value };
	if (by === "assignee") return { assigned: "false", assignee: "" };
	return by === "targetUrl" ? null : { without: by };
}

/** Tell whether a finding is in a group: locations count without line and column. */
export function isOf(by, value, task) {
	if (by === "tag") return value === null ? task.tags.length === 0 : task.tags.includes(value);
	const own = task[by] || null;
	if (by !== "location" || own === null || value === null) return own === value;
	return own.startsWith(value) && /^(:\d+){0,2}$/.test(own.slice(value.length));
}
