// Reading all findings that match filters.

import { nextCursor } from "./api.js";
import { number } from "./words.js";

export const MOST_GATHERED = 10_000;
export const LIMIT = 200; // of a request
let control = new AbortController(); // of all reading in progress

function cancelReading({ changes }) {
	control.abort();
	control = new AbortController();
	changes.say("");
}

/** Return findings, with their `total` and `etag`. With a `signal`, this is not announced. :throws AbortError: after `cancelReading` */
export async function gather(page, filters, most = MOST_GATHERED, signal) {
	const { api, changes } = page;
	const tasks = [];
	let after;
	do {
		const { data, etag } = await api.request("GET", "tasks", { query: { ...filters, limit: LIMIT, after }, signal: signal ?? control.signal });
		tasks.push(...data.tasks);
		Object.assign(tasks, { total: data.total, etag: tasks.etag ?? etag });
		after = tasks.length < most && nextCursor(data);
		const text = after && `Reading ${number(tasks.length)} of ${number(Math.min(data.total, most))} findings…`;
		if (!signal) changes.say(text || "", { cancel: after && (() => cancelReading(page)) });
	} while (after);
	return tasks;
}

/** Return {length, ready, found, cancel} for findings that are still being read, so that a dialog can open at once. */
export function whileRead(page, length, ready) {
	const tasks = { length, ready, cancel: () => tasks.found || cancelReading(page) };
	ready.then((found) => (tasks.found = found), page.changes.sayError);
	return tasks;
}
