// What every module draws with: Preact, its hooks, htm, and stores that components follow.

import { createContext, h } from "./vendor/preact.mjs";
import { useContext, useEffect, useLayoutEffect, useReducer, useRef, useState } from "./vendor/hooks.mjs";
import htm from "./vendor/htm.mjs";

export { render } from "./vendor/preact.mjs";
export * from "./vendor/hooks.mjs";
export const html = htm.bind(h);

/** What all views share, as `app.js` makes it: {api, session, router, keys, changes, memory}. */
export const PageContext = createContext(null);
export const usePage = () => useContext(PageContext);

/** Return a value that components follow with `useStore`. */
export function createStore(value) {
	const followers = new Set();
	return {
		get: () => value,
		set(next) {
			value = next;
			for (const follow of [...followers]) follow(value);
		},
		follow(follower) {
			followers.add(follower);
			return () => followers.delete(follower);
		},
	};
}

export function useStore(store) {
	const [, draw] = useReducer((turn) => turn + 1, 0);
	const value = store.get();
	useLayoutEffect(() => {
		if (store.get() !== value) draw(); // it changed between drawing and following
		return store.follow(draw);
	}, [store]);
	return value;
}

/** Call `handle` on an event of the window, as long as the component is there. */
export function useEvent(name, handle) {
	const latest = useRef(handle);
	latest.current = handle;
	useLayoutEffect(() => {
		const heed = (event) => latest.current(event);
		addEventListener(name, heed);
		return () => removeEventListener(name, heed);
	}, []);
}

/**
 * Load something with `get(path, query)` whenever one of `inputs` changes, and return {data, error, loading, reload}.
 * What was there stays until the new is: nothing jumps. An answer that comes late for older inputs is dropped, and
 * what failed is loaded again once the browser is online.
 */
export function useLoad(load, inputs, initial = null) {
	const [state, setState] = useState({ data: initial, error: null, loading: true });
	const [turn, reload] = useReducer((number) => number + 1, 0);
	const { api } = usePage();
	useEffect(() => {
		const control = new AbortController();
		const get = (path, query) => api.get(path, query, control.signal);
		const settle = (next) => control.signal.aborted || setState((old) => ({ ...old, loading: false, ...next }));
		setState((old) => ({ ...old, loading: true }));
		load(get, control.signal).then((data) => settle({ data, error: null }), (error) => settle({ error }));
		return () => control.abort();
	}, [...inputs, turn]);
	useEvent("online", () => state.error && reload());
	return { ...state, reload };
}

/** Load an answer of the service, and anew when findings have changed. */
export function useAnswer(path, query, load = (get) => get(path, query)) {
	return useLoad(load, [useStore(usePage().changes.changed), path, JSON.stringify(query)]);
}

/** Have a storage keep something as JSON under a name, unless that is too much for it. */
export function keepAs(storage, name, value) {
	try {
		storage.setItem(name, JSON.stringify(value));
	} catch {
		storage.removeItem(name);
	}
}

/** Return what a storage keeps as JSON under a name, or null. */
export function readKept(storage, name) {
	try {
		return JSON.parse(storage.getItem(name));
	} catch {
		return null;
	}
}
