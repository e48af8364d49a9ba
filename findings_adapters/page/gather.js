// Reading all findings that match filters.

import { nextCursor } from "./api.js";
import { number } from "./words.js";

export const MOST_GATHERED = 10_000;
let control = new AbortController(); // of all reading in progress

function cancelReading({ changes }) {
	control.abort();
	control = new AbortController();
	changes.say("");
}

/** :throws AbortError: after `cancelReading` */
export async function gather(page, filters) {
	const { api, changes } = page;
	const tasks = [];
	let after;
	do {
		const list = await api.get("tasks", { ...filters, limit: 200, after }, control.signal);
		tasks.push(...list.tasks);
		after = tasks.length < MOST_GATHERED && nextCursor(list);
		const text = after && `Reading ${number(tasks.length)} of ${number(Math.min(list.total, MOST_GATHERED))} findings…`;
		changes.say(text || "", { cancel: after && (() => cancelReading(page)) });
	} while (after);
	return tasks;
}

/** Return {length, ready, found, cancel} for findings that are still being read, so that a dialog can open at once. */
export function whileRead(page, length, ready) {
	const tasks = { length, ready, cancel: () => tasks.found || cancelReading(page) };
	ready.then((found) => (tasks.found = found), page.changes.sayError);
	return tasks;
}
