// What happened to a finding, and why.

import { html } from "./lib.js";
import { link } from "./route.js";
import { Status, Text, Time } from "./parts.js";
import { Prose } from "./prose.js";
import { REASONS, STATUS_NAMES } from "./words.js";

const moved = ({ from, to }) => html`moved it from ${STATUS_NAMES[from]} to <${Status} is=${to} />`;

const SENTENCES = {
	created: ({ to }) => html`reported it first, as <${Status} is=${to} />`,
	reported: (entry) => html`reported it again${entry.changed.length > 0
		&& `, with another ${entry.changed.join(", ")}`}${entry.from !== entry.to
		&& html`, which ${moved(entry)}`}`,
	status: (entry) => (entry.from === entry.to ? html`gave a reason for <${Status} is=${entry.to} />` : moved(entry)),
	comment: () => "commented",
	assigned: ({ assignee }) => html`assigned it to <strong><${Text} of=${assignee} missing="nobody" /></strong>`,
};

export const HistoryEntry = ({ entry }) => html`
	<li>
		<div>
			<strong><${Text} of=${entry.user ?? entry.by} missing="Somebody" /></strong>
			${entry.user && html` <span class="muted">(<${Text} of=${entry.by} />)</span>`} ${SENTENCES[entry.event]?.(entry) ?? entry.event}
			${entry.reason && html`<span> · ${REASONS[entry.reason] ?? entry.reason}</span>`}
			${entry.runId && html`<span> · <a href=${link("runs", entry.runId)}>run</a></span>`}
			<span class="muted"> · <${Time} at=${entry.at} long /></span>
		</div>
		${entry.comment && html`<div class="said"><${Prose} of=${entry.comment} /></div>`}
	</li>`;
