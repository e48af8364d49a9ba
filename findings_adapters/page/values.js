// Values of any shape, as tables that people can read.

import { html } from "./lib.js";
import { Text } from "./parts.js";

const DEEPEST = 4; // tables in tables; what is deeper is shown as JSON

const isPlain = (value) => value === null || typeof value !== "object";

export function Value({ of: value, depth = 0 }) {
	if (value === null) return html`<span class="muted">none</span>`;
	if (typeof value === "boolean") return value ? "yes" : "no";
	if (isPlain(value)) return html`<span class="lines"><${Text} of=${value} missing="empty" /></span>`;
	if (depth === DEEPEST) return html`<pre class="lines">${JSON.stringify(value, null, 2)}</pre>`;
	const rows = Array.isArray(value) ? value : Object.entries(value);
	if (!rows.length) return html`<span class="muted">empty</span>`;
	if (!Array.isArray(value)) return html`<${Rows} rows=${rows} depth=${depth} />`;
	return html`<ul class=${value.every(isPlain) ? "plain" : "items"}>
		${value.map((each) => html`<li><${Value} of=${each} depth=${depth + 1} /></li>`)}</ul>`;
}

const Rows = ({ rows, depth }) => html`
	<table class="plain"><tbody>
		${rows.map(([name, value]) => html`
			<tr><th scope="row"><${Text} of=${name} /></th><td><${Value} of=${value} depth=${depth + 1} /></td></tr>`)}
	</tbody></table>`;
