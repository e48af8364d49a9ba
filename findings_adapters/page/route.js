// Where the reader is: a view, what it is of, and how it is filtered, all in the part of the address behind the #.

import { createStore } from "./lib.js";

/** Return {view, id, query} of the part of an address behind its #. */
export function readRoute(hash) {
	const [path, query = ""] = hash.replace(/^#/, "").split(/\?(.*)/s);
	let parts;
	try {
		parts = path.split("/").filter(Boolean).map(decodeURIComponent);
	} catch {
		parts = ["unknown"];
	}
	return { view: parts[0] ?? "overview", id: parts[1] ?? null, query: Object.fromEntries(new URLSearchParams(query)) };
}

/** Return the link to a view, without empty values of the query. What is listed is a list with commas. */
export function link(view, id = null, query = {}) {
	const given = Object.entries(query).filter(([, value]) => String(value ?? "") !== "");
	const path = [view, ...(id === null ? [] : [id])].map(encodeURIComponent).join("/");
	const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
	return `#/${path}${given.length ? `?${text.toString().replaceAll("%2C", ",").replaceAll("%3A", ":")}` : ""}`;
}

/**
 * Return the store of where the reader is, with `go` to elsewhere, the `origin` of who looks at one finding, and the
 * `groups` out of which a list was opened.
 */
export function createRouter() {
	const store = createStore(readRoute(location.hash));
	const isOne = ({ view, id }) => view === "findings" && id !== null;
	const router = { ...store, go, origin: link("findings"), groups: "" };

	function arrive() {
		store.set(readRoute(location.hash));
		if (store.get().view !== "findings") router.groups = "";
		if (!isOne(store.get())) router.origin = location.hash || link("overview");
	}

	/** Go to a link; with `replace`, the way back does not lead here. */
	function go(to, replace = false) {
		if (to === location.hash) return;
		if (replace) {
			history.replaceState(null, "", to);
			arrive();
		} else {
			location.hash = to;
		}
	}

	addEventListener("hashchange", arrive);
	arrive();
	return router;
}
