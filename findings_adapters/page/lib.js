// Preact with its hooks and htm, and stores that components observe.

import { createContext, useContext, useEffect, useLayoutEffect, useReducer, useRef, useState } from "./vendor/preact.mjs";

export * from "./vendor/preact.mjs";

/** Objects that all views share: {api, session, router, keys, changes, dialog, memory}. */
export const PageContext = createContext(null);
export const usePage = () => useContext(PageContext);

/** Create a store of one value. `useStore` renders a component again after each change. */
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
		if (store.get() !== value) draw(); // it changed before this effect
		return store.follow(draw);
	}, [store]);
	return value;
}

/** Handle an event of the window while the component is mounted. */
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
 * Load data whenever `inputs` change, and return {data, error, loading, reload}. The previous data stays until the new
 * data has arrived, so that the layout does not shift. Responses for previous inputs are dropped. After an error, data is
 * loaded again when the browser is online.
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

/** Load a response of the API, and reload it after findings have changed. */
export function useAnswer(path, query, load = (get) => get(path, query)) {
	return useLoad(load, [useStore(usePage().changes.changed), path, JSON.stringify(query)]);
}

/** Store a value as JSON, unless it is too large. */
export function keepAs(storage, name, value) {
	try {
		storage.setItem(name, JSON.stringify(value));
	} catch {
		storage.removeItem(name);
	}
}

/** Return the value that `keepAs` stored, or null. */
export function readKept(storage, name) {
	try {
		return JSON.parse(storage.getItem(name));
	} catch {
		return null;
	}
}
