// Which keys do what.

import { createStore, html, useStore } from "./lib.js";
import { keysOn, switchKeys } from "./keys.js";
import { Dialog } from "./parts.js";

export const helpOpen = createStore(false);

const KEYS = [
	["j", "k", "Next and previous finding"],
	["Enter", "Open the finding"],
	["Esc", "Back to the list; clear the selection"],
	["n", "p", "Next and previous page"],
	["/", "Search"],
	["x", "Select"],
	["1", "2", "Open, in progress"],
	["3", "4", "Resolve, dismiss"],
	["c", "Comment"],
	["a", "Assign"],
	["u", "Undo"],
	["?", "This help"],
];

export function Help() {
	const open = useStore(helpOpen);
	const on = useStore(keysOn);
	if (!open) return null;
	const close = () => helpOpen.set(false);
	return html`
		<${Dialog} title="Keys" onClose=${close}>
			<dl class="keys">
				${KEYS.map((row) => html`
					<div><dt>${row.slice(0, -1).map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${row.at(-1)}</dd></div>`)}
			</dl>
			<label class="check"><input type="checkbox" checked=${on} onChange=${() => switchKeys(!on)} /> Single keys do this</label>
			<div class="buttons end"><button class="primary" onClick=${close}>Close</button></div>
		<//>`;
}
