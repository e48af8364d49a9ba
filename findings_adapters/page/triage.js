// Deciding about findings: keys, buttons, and the dialogs that ask for the rest.

import { API, pathOf } from "./api.js";
import { keepable } from "./decisions.js";
import { Help } from "./help.js";
import { HistoryEntry } from "./history.js";
import { useKeys } from "./keys.js";
import { html, keepAs, readKept, useLoad, usePage, useState, useStore } from "./lib.js";
import { knownPeople } from "./lists.js";
import { Dialog, Form, Input, Status, Text } from "./parts.js";
import { link } from "./route.js";
import { mayTriage } from "./session.js";
import { count, cut, number, object, REASONS, REASONS_FOR, STATUS_NAMES, STATUS_VERBS, STATUSES } from "./words.js";

const DRAFT = `findings:draft:${API.pathname}`;
const LAST_REASON = "findings:reason:"; // of each status
const MOST_MET = 20; // conflicting findings that are shown
const FIRST_REASONS = { resolved: "fixed" };

/** Begin a decision about findings, which may still be read: ask if there is something to ask. */
function decide(page, kind, tasks, status) {
	const { dialog, changes, session } = page;
	const { me } = session.get();
	if (!mayTriage({ me })) changes.say(`The key “${me.key}” is of level ${me.level}: to triage takes one of level full.`);
	else if (!tasks.length) changes.say("Choose a finding first: j and k move, x selects.");
	else if (!status || tasks.length > 1 || tasks.ready || REASONS_FOR[status]) dialog.set({ kind, tasks, status });
	else changes.carryOut({ tasks, fields: { status }, verb: STATUS_VERBS[status], what: `${STATUS_NAMES[status]}: ` }).catch(changes.sayError);
}

/** Let keys decide about `chosen()`, and return buttons for the same: pressed is the status of all `shown`. */
export function useTriage(chosen, shown = []) {
	const page = usePage();
	const moves = STATUSES.map((status) => () => decide(page, "comment", chosen(), status));
	const comment = () => decide(page, "comment", chosen());
	const assign = () => decide(page, "assign", chosen());
	const numbered = Object.fromEntries(moves.map((move, index) => [index + 1, move]));
	const isOfAll = (status) => shown.length > 0 && shown.every((task) => task.status === status);
	useKeys({ ...numbered, c: comment, a: assign, u: () => page.changes.undo().catch(page.changes.sayError) });
	return html`
		<div class="buttons" role="group" aria-label="Status">
			${STATUSES.map((status, index) => html`
				<button aria-pressed=${String(isOfAll(status))} title="${STATUS_VERBS[status]} (${index + 1})" onClick=${moves[index]}>
					<${Status} is=${status} /></button>`)}
		</div>
		<div class="buttons">
			<button title="Assign (a)" onClick=${assign}>Assign</button>
			<button title="Comment (c)" onClick=${comment}>Comment</button>
		</div>`;
}

/** Return the dialog in which somebody typed before a reload, or null. */
export const readDraft = () => readKept(sessionStorage, DRAFT);

/** Carry a change out from a dialog. */
function Asking({ title, action, tasks, submit, children }) {
	const { dialog, changes } = usePage();
	const close = () => {
		sessionStorage.removeItem(DRAFT);
		dialog.set(null);
	};
	const onSubmit = async () => {
		const mine = dialog.get(); // another may be open before there is an answer
		const isOpen = () => dialog.get() === mine;
		try {
			const found = await (tasks?.ready ?? tasks);
			if (tasks?.ready && found.length !== tasks.length) {
				tasks.length = found.length;
				throw new Error(`By now it is ${count(found.length, "finding")}. Send it again to decide about them.`);
			}
			await submit(found);
			if (isOpen()) close();
		} catch (refused) {
			if (isOpen()) throw refused;
			changes.say(refused.message);
		}
	};
	return html`
		<${Dialog} title=${title} onClose=${close}>
			<${Form} action=${action} onSubmit=${onSubmit} other=${html`<button type="button" onClick=${close}>Cancel</button>`}>${children}<//>
		<//>`;
}

/** Ask for a comment, and for a reason where the status has any: the last one is preset. */
function CommentDialog({ asked }) {
	const { changes } = usePage();
	const { tasks, status } = asked;
	const [text, setText] = useState(asked.text ?? "");
	const type = ({ target: { value } }) => { // kept over a reload
		setText(value);
		const found = tasks.ready ? tasks.found : tasks;
		if (value && found) keepAs(sessionStorage, DRAFT, keepable({ ...asked, tasks: found, text: value }));
		else sessionStorage.removeItem(DRAFT);
	};
	const [reason, setReason] = useState(sessionStorage.getItem(LAST_REASON + status) ?? FIRST_REASONS[status]);
	const reasons = REASONS_FOR[status] && [...REASONS_FOR[status], ""];
	const verb = STATUS_VERBS[status] ?? "Comment on";
	const submit = (found) => {
		if (reasons) sessionStorage.setItem(LAST_REASON + status, reason);
		const fields = { status, reason: (reasons && reason) || undefined, comment: text.trim() ? text : undefined };
		return changes.carryOut({ tasks: found, fields, verb, what: status ? `${STATUS_NAMES[status]}: ` : "Commented on " });
	};
	return html`
		<${Asking} title="${verb} ${object(tasks)}${status ? "?" : ""}" action=${status ? verb : "Comment"} tasks=${tasks} submit=${submit}>
			${reasons && html`
				<fieldset class="choices"><legend>Reason</legend>
					${reasons.map((name, index) => html`
						<label><input type="radio" name="reason" value=${name} required checked=${reason === name}
							autofocus=${reasons.includes(reason) ? reason === name : index === 0}
							onChange=${() => setReason(name)} /> ${REASONS[name] ?? "No reason given"}</label>`)}
				</fieldset>`}
			<label class="field"><span>Comment${status ? " (optional)" : ""}</span>
				<textarea rows="4" maxlength="4000" required=${!status} value=${text} autofocus=${!reasons} onInput=${type} />
			</label>
			<p class="muted"><kbd>Ctrl</kbd> <kbd>Enter</kbd> sends it.</p>
		<//>`;
}

function AssignDialog({ asked: { tasks } }) {
	const { changes, memory, session } = usePage();
	const { me } = session.get();
	const [name, setName] = useState((tasks.length === 1 && tasks[0]?.assignee) || "");
	const who = name.trim();
	const submit = (found) => changes.carryOut({
		tasks: found, fields: { assignee: who }, verb: "Assign", what: `Assigned to ${cut(who || "nobody", 60)}: ` });
	return html`
		<${Asking} title="Assign ${object(tasks)}" action=${who ? "Assign" : "Assign to nobody"} tasks=${tasks} submit=${submit}>
			<${Input} label="Name (empty: nobody)" maxlength="200" list="people" autofocus value=${name}
				onInput=${(event) => setName(event.target.value)} />
			<datalist id="people">${[...new Set([me.user ?? me.key, ...knownPeople(memory)])].map((each) => html`<option value=${each} />`)}</datalist>
		<//>`;
}

/** Delete what `path` names once that is confirmed by typing. */
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
			<${Input} label="Type “delete” to confirm" required pattern="delete" autofocus />
		<//>`;
}

/** Offer to delete something, to keys that may. */
export function DeleteButton(asked) {
	const { dialog, session } = usePage();
	return mayTriage(useStore(session))
		&& html`<button class="quiet" onClick=${() => dialog.set({ kind: "delete", ...asked })}>Delete …</button>`;
}

const State = ({ of: { status, reason, assignee } }) => html`
	<${Status} is=${status} />${reason && ` ${REASONS[reason]}`}${assignee && html`, <${Text} of=${assignee} />`}`;

/** Show what others did to a finding since it was shown. */
function Met({ shown, now }) {
	const entries = useLoad(async (get) => {
		const { history } = await get(pathOf("tasks", now.id, "/history"));
		return history.filter((entry) => entry.at > shown.updatedAt);
	}, [now]);
	return html`
		<li>
			<h3><a href=${link("findings", now.id)} target="_blank"><${Text} of=${now.title} /></a></h3>
			<p>You saw <${State} of=${shown} />; now it is <${State} of=${now} />.</p>
			<ol class="history">${entries.data?.map((entry) => html`<${HistoryEntry} entry=${entry} />`)}</ol>
		</li>`;
}

/** Ask what becomes of a change that somebody else's came before. */
function ConflictDialog({ of: { change, others } }) {
	const { carryOut, conflicts, sayError } = usePage().changes;
	const { tasks, fields, verb } = change;
	const met = new Map(others.map((now) => [now.id, now]));
	const rest = tasks.filter(({ id }) => !met.has(id));
	const close = () => conflicts.set(conflicts.get().slice(1));
	const apply = (to) => {
		close();
		carryOut({ ...change, tasks: to, key: undefined }).catch(sayError);
	};
	const which = tasks.length === 1 ? "this finding" : `${number(others.length)} of ${count(tasks.length, "finding")}`;
	return html`
		<${Dialog} title="Somebody changed ${which} meanwhile" onClose=${close} wide>
			<ul class="items">
				${others.slice(0, MOST_MET).map((now) => html`<${Met} shown=${tasks.find(({ id }) => id === now.id)} now=${now} />`)}
			</ul>
			${change.goesOn && html`<p>All before them are changed already.</p>`}
			<p>You wanted: ${verb.toLowerCase()}${fields.reason && ` as ${REASONS[fields.reason].toLowerCase()}`}${fields.assignee && ` to ${fields.assignee}`}.</p>
			${fields.comment && html`<p class="lines said"><${Text} of=${fields.comment} /></p>`}
			<div class="buttons end">
				<button type="button" onClick=${close}>Change nothing</button>
				<button type="button" class=${rest.length ? "" : "primary"} onClick=${() => apply(tasks.map((task) => met.get(task.id) ?? task))}>
					${verb} ${object(tasks)} anyway</button>
				${rest.length > 0 && html`<button type="button" class="primary" onClick=${() => apply(rest)}>
					Skip ${number(others.length)} and ${verb.toLowerCase()} ${number(rest.length)}</button>`}
			</div>
		<//>`;
}

const DIALOGS = { comment: CommentDialog, assign: AssignDialog, delete: DeleteDialog, help: Help };

export function Dialogs() {
	const { dialog, changes } = usePage();
	const asked = useStore(dialog);
	const [met] = useStore(changes.conflicts);
	const Asked = DIALOGS[asked?.kind];
	if (Asked) return html`<${Asked} asked=${asked} />`;
	return met && html`<${ConflictDialog} of=${met} key=${met.others[0].id} />`; // what is being typed comes first
}
