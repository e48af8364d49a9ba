// Keyboard shortcuts of one key.

import { createStore, useLayoutEffect, usePage, useRef } from "./lib.js";

const OFF = "findings:keys-off";
const TYPING = 'input:not([type="checkbox"], [type="radio"]), textarea, select';

/** Create {on: store that turns shortcuts off (WCAG 2.1.4), layers: actions by key; the last layer with the key handles it}. */
export function createKeys() {
	const on = createStore(!localStorage.getItem(OFF));
	const layers = [];
	on.follow((wanted) => localStorage.setItem(OFF, wanted ? "" : "1"));
	document.addEventListener("keydown", (event) => {
		const { key, target } = event;
		if (!on.get() || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
		if (event.repeat && !"jkJK".includes(key)) return; // a key that is held down decides once
		if (target.closest?.(TYPING) || document.querySelector("dialog[open], :popover-open")) return;
		const action = layers.findLast((layer) => layer.current[key])?.current[key];
		if (!action) return;
		event.preventDefault();
		action(event);
	});
	return { on, layers };
}

/** Call `actions[key]` on that key. Actions of the frame (`isAround`) come after those of the view. */
export function useKeys(actions, isAround) {
	const { layers } = usePage().keys;
	const latest = useRef();
	latest.current = actions;
	useLayoutEffect(() => {
		layers[isAround ? "unshift" : "push"](latest);
		return () => layers.splice(layers.indexOf(latest), 1);
	}, []);
}
