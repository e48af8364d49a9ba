// Deciding about findings: what keys and buttons start, and the dialogs that ask for the rest.

import { API, pathOf } from "./api.js";
import { keepable } from "./decisions.js";
import { HistoryEntry } from "./history.js";
import { html, useLoad, usePage, useState, useStore } from "./lib.js";
import { Dialog, Failed, Status, Text, Time } from "./parts.js";
import { link } from "./route.js";
import { mayTriage } from "./session.js";
import { capital, count, cut, number, object, REASONS, REASONS_FOR, STATUS_NAMES, STATUS_VERBS, STATUSES } from "./words.js";

const DRAFT = `findings:draft:${API.pathname}`;
const LAST_REASON = "findings:reason:"; // of each status
const FIRST_REASONS = { resolved: "fixed" };

const carryOutAtOnce = ({ changes }, change) => changes.carryOut(change).catch((error) => changes.say(error.message));

/** Ask for what becomes of findings, unless the key may not decide about them. */
function ask({ dialog, changes, session }, kind, tasks, more = {}) {
	const { me } = session.get();
	if (!mayTriage({ me })) changes.say(`The key “${me.key}” is of level ${me.level}: to triage takes one of level full.`);
	else if (tasks.length) dialog.set({ kind, tasks, ...more });
	else changes.say("Choose a finding first: j and k move, x selects.");
}

function giveStatus(page, tasks, status) {
	if (tasks.length !== 1 || REASONS_FOR[status] || !mayTriage(page.session.get())) ask(page, "status", tasks, { status });
	else carryOutAtOnce(page, { tasks, fields: { status }, verb: STATUS_VERBS[status], what: `${STATUS_NAMES[status]}: ` });
}

export const undoLast = ({ changes }) => changes.undo().catch((error) => changes.say(error.message));

/** Return what begins each decision about what `chosen` returns, now or in a while. */
function decisionsOf(page, chosen, people) {
	const about = (decide) => async () => {
		try {
			decide(await chosen());
		} catch (error) {
			page.changes.say(error.message);
		}
	};
	return {
		...Object.fromEntries(STATUSES.map((status) => [status, about((tasks) => giveStatus(page, tasks, status))])),
		comment: about((tasks) => ask(page, "comment", tasks)),
		assign: about((tasks) => ask(page, "assign", tasks, { people: people() })),
	};
}

export function triageKeys(page, chosen, people) {
	const { comment, assign, ...moves } = decisionsOf(page, chosen, people);
	const numbered = Object.values(moves).map((move, index) => [index + 1, move]);
	return { ...Object.fromEntries(numbered), c: comment, a: assign, u: () => undoLast(page) };
}

/** Buttons for the same; `is` is the status that all have already. */
export function TriageButtons({ chosen, people, is }) {
	const { comment, assign, ...moves } = decisionsOf(usePage(), chosen, people);
	return html`
		<div class="buttons" role="group" aria-label="Status">
			${Object.entries(moves).map(([status, move], index) => html`
				<button class="status-button" aria-pressed=${is === status ? "true" : "false"}
					title="${STATUS_VERBS[status]} (${index + 1})" onClick=${move}><${Status} is=${status} /></button>`)}
		</div>
		<div class="buttons">
			<button title="Assign (a)" onClick=${assign}>Assign</button>
			<button title="Comment (c)" onClick=${comment}>Comment</button>
		</div>`;
}

/** Return the dialog in which somebody was typing when the page was loaded anew, or null. */
export function readDraft() {
	try {
		return JSON.parse(sessionStorage.getItem(DRAFT));
	} catch {
		return null;
	}
}

/** Return what is typed in a dialog, and what takes it: it is kept over a reload. */
function useDraft(asked) {
	const [text, setText] = useState(asked.text ?? "");
	return [text, (next) => {
		setText(next);
		if (next) sessionStorage.setItem(DRAFT, JSON.stringify({ ...keepable(asked), text: next }));
		else sessionStorage.removeItem(DRAFT);
	}];
}

/** A dialog that carries a change out, and stays with all that was typed where that is refused. */
function Asking({ title, action, submit, children }) {
	const { dialog, changes } = usePage();
	const [{ error, busy }, setState] = useState({});
	const close = () => {
		sessionStorage.removeItem(DRAFT);
		dialog.set(null);
	};
	const onSubmit = async (event) => {
		event.preventDefault();
		if (busy) return;
		setState({ busy: true });
		const mine = dialog.get(); // it may be closed, and another one open, before there is an answer
		const isOpen = () => dialog.get() === mine;
		try {
			await submit();
			if (isOpen()) close();
		} catch (refused) {
			if (isOpen()) setState({ error: refused });
			else changes.say(refused.message);
		}
	};
	const onKeyDown = (event) => {
		if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) onSubmit(event);
	};
	return html`
		<${Dialog} title=${title} onClose=${close}>
			<form onSubmit=${onSubmit} onKeyDown=${onKeyDown}>
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

/** Ask for a reason, where the status has any, of which the last one is chosen already, and for a comment. */
function StatusDialog({ asked }) {
	const { changes } = usePage();
	const { tasks, status } = asked;
	const [text, setText] = useDraft(asked);
	const [reason, setReason] = useState(sessionStorage.getItem(LAST_REASON + status) ?? FIRST_REASONS[status]);
	const verb = STATUS_VERBS[status];
	const reasons = REASONS_FOR[status] && [...REASONS_FOR[status], ""];
	const submit = () => {
		if (reasons) sessionStorage.setItem(LAST_REASON + status, reason);
		const fields = { status, ...(reason && reasons ? { reason } : {}), ...(text.trim() ? { comment: text } : {}) };
		return changes.carryOut({ tasks, fields, verb, what: `${STATUS_NAMES[status]}: ` });
	};
	return html`
		<${Asking} title="${verb} ${object(tasks)}?" action=${verb} submit=${submit}>
			${reasons && html`
				<fieldset class="choices"><legend>Reason</legend>
					${reasons.map((name, index) => html`
						<label><input type="radio" name="reason" value=${name} required checked=${reason === name}
							autofocus=${reasons.includes(reason) ? reason === name : index === 0}
							onChange=${() => setReason(name)} /> ${REASONS[name] ?? "No reason given"}</label>`)}
				</fieldset>`}
			<${Comment} label="Comment (optional)" value=${text} onInput=${setText} first=${!reasons} />
		<//>`;
}

function CommentDialog({ asked }) {
	const { changes } = usePage();
	const [text, setText] = useDraft(asked);
	const submit = () => changes.carryOut({ tasks: asked.tasks, fields: { comment: text }, verb: "Comment on", what: "Commented on " });
	return html`
		<${Asking} title="Comment on ${object(asked.tasks)}" action="Comment" submit=${submit}>
			<${Comment} label="Comment" value=${text} onInput=${setText} first />
			<p class="muted"><kbd>Ctrl</kbd> <kbd>Enter</kbd> sends it.</p>
		<//>`;
}

function AssignDialog({ asked: { tasks, people = [] } }) {
	const { changes, session } = usePage();
	const { me } = session.get();
	const [name, setName] = useState(tasks.length === 1 ? (tasks[0].assignee ?? "") : "");
	const who = name.trim();
	const submit = () => changes.carryOut({
		tasks, fields: { assignee: who }, verb: "Assign", what: `Assigned to ${cut(who || "nobody", 60)}: ` });
	return html`
		<${Asking} title="Assign ${object(tasks)}" action=${who ? "Assign" : "Assign to nobody"} submit=${submit}>
			<label class="field"><span>Name (empty: nobody)</span>
				<input type="text" maxlength="200" list="people" autocomplete="off" autofocus value=${name}
					onInput=${(event) => setName(event.target.value)} />
			</label>
			<datalist id="people">${[...new Set([me.user ?? me.key, ...people])].map((each) => html`<option value=${each} />`)}</datalist>
		<//>`;
}

const WORD = "delete";

/** Delete what `path` names, once that is confirmed by typing, and go to where it is missing. */
function DeleteDialog({ asked: { what, path, to, children } }) {
	const { api, changes, router } = usePage();
	const submit = async () => {
		await api.request("DELETE", path);
		changes.say(`Deleted: ${what}.`);
		changes.changed.set([]);
		router.go(to, true);
	};
	return html`
		<${Asking} title="Delete ${what}?" action="Delete" submit=${submit}>
			<p>${children} Nothing brings it back.</p>
			<label class="field"><span>Type “${WORD}” to confirm</span>
				<input type="text" required pattern=${WORD} autocomplete="off" autofocus /></label>
		<//>`;
}

/** A button that asks whether to delete something, for keys that may. */
export function DeleteButton(asked) {
	const { dialog, session } = usePage();
	return mayTriage(useStore(session))
		&& html`<button class="quiet" onClick=${() => dialog.set({ kind: "delete", ...asked })}>Delete …</button>`;
}

/** What becomes of a change that somebody else's triage came before. */
function useConflict({ change, others }) {
	const page = usePage();
	const { conflicts } = page.changes;
	const met = new Map(others.map((now) => [now.id, now]));
	const close = () => conflicts.set(conflicts.get().slice(1));
	const apply = (tasks) => {
		close();
		carryOutAtOnce(page, { ...change, tasks, key: undefined });
	};
	return {
		close,
		applyToAll: () => apply(change.tasks.map((task) => met.get(task.id) ?? task)),
		applyToRest: () => apply(change.tasks.filter(({ id }) => !met.has(id))),
	};
}

function ConflictDialog({ of }) {
	const { api } = usePage();
	const { close, applyToAll } = useConflict(of);
	const { change, others: [now] } = of;
	const [shown] = change.tasks;
	const entries = useLoad(async (signal) => {
		const { history } = await api.get(pathOf("tasks", now.id, "/history"), {}, signal);
		return history.filter((entry) => entry.at > shown.updatedAt);
	}, [of]);
	const rows = ["status", "reason", "assignee", "severity", "title"];
	const name = (field, value) => STATUS_NAMES[value] ?? REASONS[value] ?? (field === "severity" ? capital(value) : value);
	const cell = (field, value) => html`<td><${Text} of=${value && name(field, value)} /></td>`;
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
				<button type="button" class="primary" onClick=${applyToAll}>Apply mine anyway</button>
			</div>
		<//>`;
}

function ManyConflictsDialog({ of }) {
	const { close, applyToAll, applyToRest } = useConflict(of);
	const { change: { tasks, fields, verb }, others } = of;
	const rest = tasks.length - others.length;
	return html`
		<${Dialog} title="Somebody changed ${others.length} of ${count(tasks.length, "finding")} meanwhile" onClose=${close} wide>
			<ul class="rows">
				${others.map((now) => html`
					<li><span class="what"><a href=${link("findings", now.id)} target="_blank"><${Text} of=${now.title} /></a></span>
						<span><${Status} is=${now.status} /> ${now.reason && REASONS[now.reason]}</span> <${Text} of=${now.assignee} missing="" /></li>`)}
			</ul>
			${fields.comment && html`<p>Your comment:</p><p class="lines said"><${Text} of=${fields.comment} /></p>`}
			<div class="buttons end">
				<button type="button" onClick=${close}>Change none</button>
				<button type="button" onClick=${applyToAll}>${verb} all ${number(tasks.length)} anyway</button>
				${rest > 0 && html`<button type="button" class="primary" autofocus onClick=${applyToRest}>
					Skip ${number(others.length)} and ${verb.toLowerCase()} ${number(rest)}</button>`}
			</div>
		<//>`;
}

const DIALOGS = { status: StatusDialog, comment: CommentDialog, assign: AssignDialog, delete: DeleteDialog };

export function TriageDialogs() {
	const { dialog, changes } = usePage();
	const asked = useStore(dialog);
	const [met] = useStore(changes.conflicts);
	const Asked = DIALOGS[asked?.kind];
	if (Asked) return html`<${Asked} asked=${asked} />`;
	const Met = met?.change.tasks.length === 1 ? ConflictDialog : ManyConflictsDialog; // what is being typed comes first
	return met && html`<${Met} of=${met} key=${met.others[0].id} />`;
}
