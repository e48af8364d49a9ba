// Deciding about findings: what keys and buttons start, and the dialogs that ask for the rest.

import { carryOut, conflicts, entriesSince, say, undo } from "./changes.js";
import { createStore, html, useLoad, useState, useStore } from "./lib.js";
import { Dialog, Failed, Status, Text, Time } from "./parts.js";
import { HistoryEntry } from "./history.js";
import { capital, count, cut, REASONS, STATUS_NAMES, STATUS_VERBS, STATUSES } from "./words.js";

const asked = createStore(null); // what a dialog asks for: {kind, tasks, status?, people?}

const object = (tasks) => (tasks.length === 1 ? `“${cut(tasks[0].title, 60)}”` : count(tasks.length, "finding"));

async function carryOutAtOnce(change) {
	try {
		await carryOut(change);
	} catch (error) {
		say(error.message);
	}
}

function ask(kind, tasks, more = {}) {
	if (tasks.length) asked.set({ kind, tasks, ...more });
	else say("Choose a finding first: j and k move, x selects.");
}

function giveStatus(tasks, status) {
	if (tasks.length === 1 && status !== "dismissed") {
		carryOutAtOnce({ tasks, fields: { status }, what: `${STATUS_NAMES[status]}: ${object(tasks)}` });
	} else ask("status", tasks, { status });
}

export const comment = (tasks) => ask("comment", tasks);
export const assign = (tasks, people) => ask("assign", tasks, { people });
export const undoLast = () => undo().catch((error) => say(error.message));

/** Return the keys of triage, for what `chosen` returns. */
export function triageKeys(full, chosen, people) {
	if (!full) return {};
	const statuses = STATUSES.map((status, index) => [index + 1, () => giveStatus(chosen(), status)]);
	return {
		...Object.fromEntries(statuses),
		c: () => comment(chosen()),
		a: () => assign(chosen(), people()),
		u: undoLast,
	};
}

export function TriageButtons({ tasks, people }) {
	const [is] = new Set(tasks.map((each) => each.status));
	const alike = tasks.every((each) => each.status === is);
	return html`
		<div class="buttons" role="group" aria-label="Status">
			${STATUSES.map((status, index) => html`
				<button class="status-button" aria-pressed=${alike && is === status ? "true" : "false"}
					title="${STATUS_VERBS[status]} (${index + 1})" onClick=${() => giveStatus(tasks, status)}>
					<${Status} is=${status} />
				</button>`)}
		</div>
		<div class="buttons">
			<button title="Assign (a)" onClick=${() => assign(tasks, people)}>Assign</button>
			<button title="Comment (c)" onClick=${() => comment(tasks)}>Comment</button>
		</div>`;
}

/** A dialog that carries a change out, and stays with all that was typed where that is refused. */
function Asking({ title, action, tasks, fields, what, children }) {
	const [{ error, busy }, setState] = useState({});
	const close = () => asked.set(null);
	const submit = async (event) => {
		event?.preventDefault();
		if (busy) return;
		setState({ busy: true });
		const mine = asked.get(); // it may be closed, and another one open, before there is an answer
		const isOpen = () => asked.get() === mine;
		try {
			await carryOut({ tasks, fields: fields(), what });
			if (isOpen()) close();
		} catch (refused) {
			if (isOpen()) setState({ error: refused });
			else say(refused.message);
		}
	};
	const onKeyDown = (event) => {
		if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
	};
	return html`
		<${Dialog} title=${title} onClose=${close}>
			<form onSubmit=${submit} onKeyDown=${onKeyDown}>
				${children}
				${error && html`<${Failed} error=${error} />`}
				<div class="buttons end">
					<button type="button" onClick=${close}>Cancel</button>
					<button class="primary" disabled=${busy}>${action}</button>
				</div>
			</form>
		<//>`;
}

const Comment = ({ label, value, onInput, first }) => html`
	<label class="field"><span>${label}</span>
		<textarea rows="4" maxlength="4000" value=${value} autofocus=${first} onInput=${(event) => onInput(event.target.value)} />
	</label>`;

function StatusDialog({ tasks, status }) {
	const [reason, setReason] = useState("");
	const [text, setText] = useState("");
	const verb = STATUS_VERBS[status];
	const fields = () => ({ status, ...(reason ? { reason } : {}), ...(text.trim() ? { comment: text } : {}) });
	const reasons = Object.entries({ "": "No reason given", ...REASONS });
	return html`
		<${Asking} title="${verb} ${object(tasks)}?" action=${verb} tasks=${tasks} fields=${fields}
			what="${STATUS_NAMES[status]}: ${object(tasks)}">
			${tasks.length > 1 && html`<p class="muted">All of them, or none if one is refused.</p>`}
			${status === "dismissed" && html`
				<fieldset class="choices"><legend>Reason</legend>
					${reasons.map(([name, words]) => html`
						<label><input type="radio" name="reason" value=${name} checked=${reason === name} autofocus=${name === ""}
							onChange=${() => setReason(name)} /> ${words}</label>`)}
				</fieldset>`}
			<${Comment} label="Comment (optional)" value=${text} onInput=${setText} first=${status !== "dismissed"} />
		<//>`;
}

function CommentDialog({ tasks }) {
	const [text, setText] = useState("");
	return html`
		<${Asking} title="Comment on ${object(tasks)}" action="Comment" tasks=${tasks} fields=${() => ({ comment: text })}
			what="Commented on ${object(tasks)}">
			<${Comment} label="Comment" value=${text} onInput=${setText} first />
			<p class="muted"><kbd>Ctrl</kbd> <kbd>Enter</kbd> sends it.</p>
		<//>`;
}

function AssignDialog({ tasks, people = [] }) {
	const [name, setName] = useState(tasks.length === 1 ? (tasks[0].assignee ?? "") : "");
	const who = name.trim();
	return html`
		<${Asking} title="Assign ${object(tasks)}" action=${who ? "Assign" : "Assign to nobody"} tasks=${tasks}
			fields=${() => ({ assignee: who })} what="Assigned to ${cut(who || "nobody", 60)}: ${object(tasks)}">
			<label class="field"><span>Name (empty: nobody)</span>
				<input type="text" maxlength="200" list="people" autocomplete="off" autofocus value=${name}
					onInput=${(event) => setName(event.target.value)} />
			</label>
			<datalist id="people">${people.map((each) => html`<option value=${each} />`)}</datalist>
		<//>`;
}

function ConflictDialog({ of }) {
	const { change, now } = of;
	const [shown] = change.tasks;
	const entries = useLoad(() => entriesSince(of), [of]);
	const rows = ["status", "reason", "assignee", "severity", "title"];
	const name = (field, value) => STATUS_NAMES[value] ?? REASONS[value] ?? (field === "severity" ? capital(value) : value);
	const cell = (field, value) => html`<td><${Text} of=${value && name(field, value)} /></td>`;
	const close = () => conflicts.set(conflicts.get().slice(1));
	const apply = () => {
		close();
		carryOutAtOnce({ ...change, tasks: [now] });
	};
	return html`
		<${Dialog} title="Somebody changed this finding meanwhile" onClose=${close} wide>
			<table class="plain">
				<caption class="hidden">What was shown, what it is now, and what you wanted</caption>
				<thead><tr><td></td><th scope="col">You saw</th><th scope="col">It is now</th><th scope="col">You wanted</th></tr></thead>
				<tbody>
					${rows.filter((field) => field in change.fields || (shown[field] ?? null) !== (now[field] ?? null)).map((field) => html`
						<tr><th scope="row">${capital(field)}</th>
							${cell(field, shown[field])}${cell(field, now[field])}${cell(field, change.fields[field])}</tr>`)}
					${change.fields.comment && html`
						<tr><th scope="row">Comment</th><td></td><td></td><td class="lines"><${Text} of=${change.fields.comment} /></td></tr>`}
				</tbody>
			</table>
			<h3>Since then</h3>
			<ol class="history">
				${entries.data?.map((entry) => html`<${HistoryEntry} entry=${entry} />`)}
				${entries.data?.length === 0 && html`<li>A run reported it again <${Time} at=${now.lastSeenAt} long />.</li>`}
			</ol>
			<div class="buttons end">
				<button type="button" onClick=${close}>Leave it as it is</button>
				<button type="button" class="primary" onClick=${apply}>Apply mine anyway</button>
			</div>
		<//>`;
}

export function TriageDialogs() {
	const wanted = useStore(asked);
	const [met] = useStore(conflicts);
	if (wanted?.kind === "status") return html`<${StatusDialog} ...${wanted} />`;
	if (wanted?.kind === "comment") return html`<${CommentDialog} ...${wanted} />`;
	if (wanted?.kind === "assign") return html`<${AssignDialog} ...${wanted} />`;
	return met && html`<${ConflictDialog} of=${met} key=${met.change.tasks[0].id} />`; // what is being typed comes first
}
