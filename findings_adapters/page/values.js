// Values of any shape, as tables that people can read.

import { html } from "./lib.js";
import { Text } from "./parts.js";

const DEEPEST = 4; // deeper tables are shown as JSON

const isPlain = (value) => value === null || typeof value !== "object";

export function Value({ of: value, depth = 0 }) {
	if (value === null) return html`<${Text} missing="none" />`;
	if (typeof value === "boolean") return value ? "yes" : "no";
	if (isPlain(value)) return html`<span class="lines"><${Text} of=${value} missing="empty" /></span>`;
	if (depth === DEEPEST) return html`<pre class="lines">${JSON.stringify(value, null, 2)}</pre>`;
	const rows = Array.isArray(value) ? value : Object.entries(value);
	if (!rows.length) return html`<${Text} missing="empty" />`;
	const inner = (each) => html`<${Value} of=${each} depth=${depth + 1} />`;
	if (rows === value) return html`<ul class=${rows.every(isPlain) ? "plain" : "items"}>${rows.map((each) => html`<li>${inner(each)}</li>`)}</ul>`;
	return html`
		<table class="plain"><tbody>
			${rows.map(([name, each]) => html`<tr><th scope="row"><${Text} of=${name} /></th><td>${inner(each)}</td></tr>`)}
		</tbody></table>`;
}
