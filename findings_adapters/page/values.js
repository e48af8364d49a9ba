// Values of any shape as tables, with links for web addresses.

import { html } from "./lib.js";
import { Outside, Text } from "./parts.js";
import { webAddress, YES_OR_NO } from "./words.js";

const DEEPEST = 4; // deeper tables are shown as JSON

const isPlain = (value) => value === null || typeof value !== "object";

export function Value({ of: value, depth = 0 }) {
	if (typeof value === "boolean") return YES_OR_NO[value];
	if (value === null) return html`<${Text} missing="none" />`;
	if (isPlain(value)) return html`<span class="lines"><${Outside} href=${webAddress(value)?.href}><${Text} of=${value} missing="empty" /><//></span>`;
	if (depth === DEEPEST) return html`<pre class="lines">${JSON.stringify(value, null, 2)}</pre>`;
	const rows = Object.entries(value).map(([name, each]) => [name, html`<${Value} of=${each} depth=${depth + 1} />`]);
	if (!rows.length) return html`<${Text} missing="empty" />`;
	if (Array.isArray(value)) return html`<ul class=${value.every(isPlain) ? "plain" : "items"}>${rows.map(([, shown]) => html`<li>${shown}</li>`)}</ul>`;
	return html`
		<table class="plain"><tbody>${rows.map(([name, shown]) => html`<tr><th scope="row"><${Text} of=${name} /></th><td>${shown}</td></tr>`)}</tbody></table>`;
}
