// Where the reader is: a view, what it is of, and how it is filtered, all in the part of the address behind the #.

import { createStore } from "./lib.js";

function read() {
	const [path, query = ""] = location.hash.replace(/^#/, "").split(/\?(.*)/s);
	let parts;
	try {
		parts = path.split("/").filter(Boolean).map(decodeURIComponent);
	} catch {
		parts = ["unknown"];
	}
	return { view: parts[0] ?? "overview", id: parts[1] ?? null, query: Object.fromEntries(new URLSearchParams(query)) };
}

export const route = createStore(read());
addEventListener("hashchange", () => route.set(read()));

/** Return the link to a view: empty values of the query are left out, and what is listed is a list with commas. */
export function link(view, id = null, query = {}) {
	const given = Object.entries(query).filter(([, value]) => String(value ?? "") !== "");
	const path = [view, ...(id === null ? [] : [id])].map(encodeURIComponent).join("/");
	const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
	return `#/${path}${given.length ? `?${text.toString().replaceAll("%2C", ",").replaceAll("%3A", ":")}` : ""}`;
}

/** Go to a link; with `replace`, the way back does not lead here. */
export function go(to, replace = false) {
	if (to === location.hash) return;
	if (!replace) {
		location.hash = to;
		return;
	}
	history.replaceState(null, "", to);
	route.set(read());
}
