// Preact with its hooks and htm, and stores that components observe.

import { createContext, useContext, useEffect, useLayoutEffect, useReducer, useRef, useState } from "./vendor/preact.mjs";

export * from "./vendor/preact.mjs";

/** What views share: {api, session, router, keys, changes, dialog, memory}. */
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

/** Handle an event of the window while the component is there. */
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
 * Load something whenever `inputs` change, and return {data, error, loading, reload}. Old data stays until the new is
 * there, so that nothing jumps. Late answers for older inputs are dropped; what failed is loaded again once online.
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

/** Load an answer of the service, and again when findings change. */
export function useAnswer(path, query, load = (get) => get(path, query)) {
	return useLoad(load, [useStore(usePage().changes.changed), path, JSON.stringify(query)]);
}

/** Keep a value in a storage as JSON, unless it is too large. */
export function keepAs(storage, name, value) {
	try {
		storage.setItem(name, JSON.stringify(value));
	} catch {
		storage.removeItem(name);
	}
}

/** Return what `keepAs` kept, or null. */
export function readKept(storage, name) {
	try {
		return JSON.parse(storage.getItem(name));
	} catch {
		return null;
	}
}
