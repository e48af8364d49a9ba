// Single keys: what the views listen for, while nobody types.

import { createStore, useLayoutEffect, useRef } from "./lib.js";

const OFF = "findings:keys-off";
const TYPING = 'input:not([type="checkbox"], [type="radio"]), textarea, select';
const layers = [];

/** Whether single keys do anything: speech input and some ways of typing need them to do nothing (WCAG 2.1.4). */
export const keysOn = createStore(localStorage.getItem(OFF) === null);

export function switchKeys(on) {
	if (on) localStorage.removeItem(OFF);
	else localStorage.setItem(OFF, "1");
	keysOn.set(on);
}

/** Call `actions[key]` when that key is pressed. A view is asked before what stands around it. */
export function useKeys(actions, isAround = false) {
	const latest = useRef(actions);
	latest.current = actions;
	useLayoutEffect(() => {
		layers[isAround ? "unshift" : "push"](latest);
		return () => layers.splice(layers.indexOf(latest), 1);
	}, []);
}

document.addEventListener("keydown", (event) => {
	if (!keysOn.get() || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
	if (event.repeat && !"jk".includes(event.key)) return; // held down, it decides once
	if (event.target.closest?.(TYPING) || document.querySelector("dialog[open]")) return;
	const action = layers.map((layer) => layer.current[event.key]).findLast(Boolean);
	if (!action) return;
	event.preventDefault();
	action(event);
});
