// Which keys do what.

import { html, usePage, useStore } from "./lib.js";
import { Dialog } from "./parts.js";

const KEYS = [
	["j", "k", "Next and previous, over the ends of pages"],
	["Enter", "Open"],
	["Esc", "Back to where you came from; clear the selection"],
	["n", "p", "Next and previous page"],
	["/", "Search"],
	["g", "Group by rule, file, assignee or target"],
	["x", "Select; Shift and a click: a range"],
	["X", "Select all that match"],
	["1", "2", "Open, in progress"],
	["3", "4", "Resolve, dismiss"],
	["c", "Comment"],
	["a", "Assign"],
	["u", "Undo"],
	["r", "Load what is new"],
	["?", "This help"],
];

export function Help() {
	const { dialog, keys } = usePage();
	const on = useStore(keys.on);
	const close = () => dialog.set(null);
	return html`
		<${Dialog} title="Keys" onClose=${close}>
			<dl class="keys">
				${KEYS.map((row) => html`
					<div><dt>${row.slice(0, -1).map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${row.at(-1)}</dd></div>`)}
			</dl>
			<label class="check"><input type="checkbox" checked=${on} onChange=${() => keys.on.set(!on)} /> Single keys do this</label>
			<div class="buttons end"><button class="primary" onClick=${close}>Close</button></div>
		<//>`;
}
