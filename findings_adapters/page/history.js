// What happened to a finding: who, when, what, and why.

import { html } from "./lib.js";
import { link } from "./route.js";
import { Status, Text, Time } from "./parts.js";
import { Prose } from "./prose.js";
import { REASONS, STATUS_NAMES } from "./words.js";

const FIELD_NAMES = { successCriteria: "criteria" };

const Moved = ({ entry }) =>
	entry.from && entry.from !== entry.to
		? html`from ${STATUS_NAMES[entry.from]} to <${Status} is=${entry.to} />`
		: html`<${Status} is=${entry.to} />`;

const SENTENCES = {
	created: (entry) => html`reported it first, as <${Status} is=${entry.to} />`,
	reported: (entry) => html`reported it again${entry.changed.length
		? `, with another ${entry.changed.map((name) => FIELD_NAMES[name] ?? name).join(", ")}` : ""}${entry.to && entry.from !== entry.to
		? html`, which moved it <${Moved} entry=${entry} />` : ""}`,
	status: (entry) => (entry.from === entry.to
		? html`gave a reason for <${Status} is=${entry.to} />` : html`moved it <${Moved} entry=${entry} />`),
	comment: () => "commented",
	assigned: (entry) => (entry.assignee ? html`assigned it to <strong><${Text} of=${entry.assignee} /></strong>` : "assigned it to nobody"),
};

export const HistoryEntry = ({ entry }) => html`
	<li>
		<div class="entry">
			<strong><${Text} of=${entry.by} missing="Somebody" /></strong> ${SENTENCES[entry.event]?.(entry) ?? entry.event}
			${entry.reason && html`<span> · ${REASONS[entry.reason] ?? entry.reason}</span>`}
			${entry.runId && html`<span> · <a href=${link("runs", entry.runId)}>run</a></span>`}
			<span class="muted"> · <${Time} at=${entry.at} long /></span>
		</div>
		${entry.comment && html`<div class="said"><${Prose} of=${entry.comment} /></div>`}
	</li>`;
