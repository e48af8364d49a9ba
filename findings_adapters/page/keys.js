// Single keys, which views listen for while nobody types.

import { createStore, useLayoutEffect, usePage, useRef } from "./lib.js";

const OFF = "findings:keys-off";
const TYPING = 'input:not([type="checkbox"], [type="radio"]), textarea, select';

/**
 * Return {on, layers}: whether single keys do anything, as speech input needs them off (WCAG 2.1.4), and what is
 * listened for, by whom is asked last.
 */
export function createKeys() {
	const on = createStore(!localStorage.getItem(OFF));
	const layers = [];
	on.follow((wanted) => localStorage.setItem(OFF, wanted ? "" : "1"));
	document.addEventListener("keydown", (event) => {
		if (!on.get() || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
		if (event.repeat && !"jk".includes(event.key)) return; // held down, it decides once
		if (event.target.closest?.(TYPING) || document.querySelector("dialog[open]")) return;
		const action = layers.map((layer) => layer.current[event.key]).findLast(Boolean);
		if (!action) return;
		event.preventDefault();
		action(event);
	});

	return { on, layers };
}

/** Call `actions[key]` on that key. A view is asked before what stands around it. */
export function useKeys(actions, isAround = false) {
	const { layers } = usePage().keys;
	const latest = useRef(actions);
	latest.current = actions;
	useLayoutEffect(() => {
		layers[isAround ? "unshift" : "push"](latest);
		return () => layers.splice(layers.indexOf(latest), 1);
	}, []);
}
