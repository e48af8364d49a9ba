// Routes: the fragment of the address holds the view, its item and its filters.

import { createStore } from "./lib.js";
import { UNRESOLVED } from "./words.js";

/** Parse a fragment into {view, id, query}. */
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

/** Return the link to a view. Empty values of the query are left out; arrays are joined with commas. */
export function link(view, id = null, query = {}) {
	const given = Object.entries(query).filter(([, value]) => String(value ?? "") !== "");
	const path = [view, ...(id === null ? [] : [id])].map(encodeURIComponent).join("/");
	const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
	return `#/${path}${given.length ? `?${text.toString().replaceAll("%2C", ",").replaceAll("%3A", ":")}` : ""}`;
}

/** Return the link to findings: by default the unresolved ones of the main branch, most severe first. */
export const toFindings = (query) => link("findings", null, { status: UNRESOLVED, mainLine: "true", sort: "severity", ...query });

/** Return the router: a store with `go`, a finding's `origin`, and the `groups` a list was opened from. */
export function createRouter() {
	const store = createStore(readRoute(location.hash));
	const isOne = ({ view, id }) => view === "findings" && id !== null;
	const router = { ...store, go, origin: toFindings(), groups: "" };

	function arrive() {
		store.set(readRoute(location.hash));
		if (store.get().view !== "findings") router.groups = "";
		if (!isOne(store.get())) router.origin = location.hash || link("overview");
	}

	/** Open a link; `replace` replaces the current entry of the browser's history. */
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
