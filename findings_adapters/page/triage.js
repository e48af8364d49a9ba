// Triage of findings: keys, buttons and dialogs.

import { API, pathOf } from "./api.js";
import { chosenSeverity, keepable } from "./decisions.js";
import { HistoryEntry } from "./history.js";
import { useKeys } from "./keys.js";
import { html, keepAs, readKept, useAnswer, usePage, useStore } from "./lib.js";
import { Dialog, Form, Input, Menu, Text } from "./parts.js";
import { link } from "./route.js";
import { Decision } from "./rows.js";
import { mayDelete, mayTriage } from "./session.js";
import { capital, count, cut, dateValue, number, object, REASONS, REASONS_FOR, SEVERITIES } from "./words.js";

const DRAFTS = `findings:drafts:${API.pathname}`;
const LAST_REASON = "findings:reason:"; // of each status
const MOST_CONFLICTS = 20; // conflicting findings that are shown
const FIRST_REASONS = { resolved: "fixed" };
const ACTIONS = [ // key, button, status; the first two have room on a phone
	["3", "Resolve", "resolved"],
	["4", "Dismiss…", "dismissed"],
	["1", "Reopen", "open"],
	["2", "Start", "in_progress"],
	["a", "Assign…"],
	["c", "Comment…"],
	["s", "Severity…"],
];
const DIALOG_KINDS = { a: "assign", s: "severity" }; // of other keys: "comment"
const SHORTCUTS = [
	["j k", "Next / previous finding"],
	["n p", "Next / previous page"],
	["Enter", "Open"],
	["Esc", "Clear the selection, or go back"],
	["/", "Search"],
	["g", "Group by rule on/off"],
	["r", "Refresh"],
	["a r", "Accept / reject, in Proposals"],
	["x", "Select (Shift-click for a range)"],
	["J K", "Extend the selection down / up"],
	["X", "Select all that match"],
	...ACTIONS,
	["u", "Undo"],
];
const MOST_KEPT = 1000; // findings of a draft that a reload opens again
const drafts = new Map(readKept(sessionStorage, DRAFTS)); // dialogs with typed comments, by name

/** Return "Dismissed " for "Dismiss". */
const done = (verb) => `${verb.replace(/e?$/, "ed")} `;

/** Return whether the key may triage, and say so if it may not. */
export function checkLevel({ changes, session }) {
	const { me } = session.get();
	if (mayTriage({ me })) return true;
	changes.say(`Your key is ${me.level === "read" ? "read-only" : `of level ${me.level}`}. Triage needs a key of level triage.`);
	return false;
}

const isOfAll = (tasks, status) => tasks.length > 0 && tasks.every((task) => task.status === status);

/**
 * Let keys decide about `chosen()`, and return buttons for the same, without those that set the status of all `shown`. `advance` is called
 * once the status of one finding is decided, before it is saved. `extra` is shown in the menu "More" of a phone.
 */
export function useTriage(chosen, shown = [], advance = () => {}, extra) {
	const page = usePage();
	const { changes, dialog } = page;
	useStore(changes.pending);
	const isPending = ({ id }) => changes.pending.get().has(id);
	const act = ([key, name, status]) => {
		if (!checkLevel(page)) return;
		const box = key === "c" && document.getElementById("comment"); // of a finding's view
		if (box) return box.focus();
		const [tasks, verb] = [chosen(), name.replace("…", "")];
		const isAsking = !status || status === "dismissed" || tasks.ready; // also for another reason
		if (!tasks.length) changes.say("Select a finding first (j/k, x).");
		else if (!isAsking && !tasks.some(isPending) && isOfAll(tasks.map(changes.present), status)) changes.say("Nothing changed.");
		else if (isAsking || tasks.length > 1) dialog.set({ kind: DIALOG_KINDS[key] ?? "comment", tasks, status, verb, advance });
		else {
			const saved = changes.carryOut({ tasks, fields: { status, reason: FIRST_REASONS[status] }, verb, what: done(verb) });
			saved.catch((error) => changes.say(`Couldn't save ${object(tasks)}. ${error.message}`));
			advance();
		}
	};
	const keys = Object.fromEntries(ACTIONS.map((action) => [action[0], () => act(action)]));
	useKeys(keys);
	const offered = ACTIONS.filter(([key, , status]) => key === "4" || !status || !isOfAll(shown, status));
	const button = (action, style) => html`
		<button class=${style} title="${action[1]} (${action[0]})" onClick=${() => act(action)}>${action[1]}</button>`;
	return html`
		<div class="buttons decide" role="group" aria-label="Triage" aria-busy=${String(shown.some(isPending))}>
			${offered.map((action, index) => button(action, action[0] === "3" ? "primary" : index > 1 && "roomy"))}
			<span class="more"><${Menu} id="more" name="More">${extra}${offered.slice(2).map((action) => button(action, "quiet"))}<//></span>
		</div>`;
}

/** Keep a typed comment until it is saved or discarded (""). A reload opens its dialog again, unless that `isClosed`. */
function keepDraft(asked, text, isClosed) {
	const { name, tasks } = asked;
	const all = tasks.ready ? tasks.found : tasks;
	const known = all?.length <= MOST_KEPT && all;
	if (text) drafts.set(name, keepable({ ...asked, tasks: known || [], text, isClosed: isClosed || !known, failure: undefined }));
	else drafts.delete(name);
	keepAs(sessionStorage, DRAFTS, [...drafts]);
}

export const readDraft = () => [...drafts.values()].find(({ isClosed }) => !isClosed);

/** Queue the change that a dialog asked for, and close the dialog. It opens again if the service refuses the change. */
async function submit({ dialog, changes }, asked, change) {
	const { tasks, status, advance } = asked;
	const found = await (tasks.ready ?? tasks);
	if (dialog.get() !== asked) return;
	if (found.length !== tasks.length && !tasks.isEstimate) {
		Object.assign(tasks, { length: found.length, label: undefined });
		dialog.set({ ...asked });
		throw new Error(`${count(found.length, "finding matches", "findings match")} now. Submit again to confirm.`);
	}
	const saved = changes.carryOut({ ...change, tasks: found });
	dialog.set(null);
	await null; // the closed dialog has returned the focus
	if (status && tasks.length === 1) advance?.();
	saved.then(() => keepDraft(asked, ""), (failure) => {
		if (dialog.get()) changes.say(`Couldn't save ${object(tasks)}. ${failure.message}`);
		else dialog.set({ ...asked, tasks: failure.left?.tasks ?? tasks, failure });
	});
}

/** A dialog with a form. Closing it calls `onClose`, with true for Escape and with false for the button Cancel. */
function Asking({ asked, title, onClose, children, ...form }) {
	const { dialog } = usePage();
	const close = (isEscape) => {
		asked.tasks?.cancel?.();
		dialog.set(null);
		onClose?.(isEscape);
	};
	return html`
		<${Dialog} title=${title} onClose=${() => close(true)}>
			<${Form} ...${form} failure=${asked.failure} other=${html`<button type="button" onClick=${() => close(false)}>Cancel</button>`}>${children}<//>
		<//>`;
}

/** Return the names and texts to choose from for a dialog: severities, or reasons if the status has any. */
const choicesOf = (isSeverity, status, reported) => (isSeverity
	? [...SEVERITIES.map((name) => [name, capital(name)]), ["reported", `As reported${reported ? ` (${reported})` : ""}`]]
	: REASONS_FOR[status]?.map((name) => [name, REASONS[name] ?? "No reason given"]));

/** Ask for a comment, and for a severity or a reason: the last reason is preset. A dismissal may end at a date. */
function CommentDialog({ asked }) {
	const page = usePage();
	const { tasks, status } = asked;
	const isSeverity = asked.kind === "severity";
	const isOptional = status || isSeverity;
	const one = (tasks.length === 1 && tasks[0]) || null;
	const verb = status ? asked.verb : isSeverity ? "Set severity of" : "Comment on";
	asked.name ??= JSON.stringify([status ?? asked.kind, tasks.label, Array.from(tasks, (task) => task?.id).sort()]);
	const typed = () => drafts.get(asked.name)?.text ?? "";
	const onClose = (isEscape) => {
		const text = isEscape ? typed() : "";
		keepDraft(asked, text, true);
		if (text) page.changes.say("Draft kept.");
	};
	const choices = choicesOf(isSeverity, status, one && (one.reportedSeverity ?? one.severity));
	const preset = asked.choice ?? (isSeverity ? one && chosenSeverity(one) : sessionStorage.getItem(LAST_REASON + status) ?? FIRST_REASONS[status]);
	const end = one?.until ? dateValue(one.until) : "";
	const onSubmit = ({ elements: { choice, comment, until } }) => {
		Object.assign(asked, { choice: choice?.value, until: until?.value }); // kept if the service refuses them
		if (status && choices) sessionStorage.setItem(LAST_REASON + status, choice.value);
		const fields = { status, [isSeverity ? "severity" : "reason"]: choice?.value || undefined, comment: comment.value.trim() ? comment.value : undefined };
		if (until && until.value !== end) fields.until = until.value && new Date(`${until.value}T00:00`).toISOString();
		return submit(page, asked, { fields, verb, what: status ? done(verb) : isSeverity ? `${verb} ` : "Commented on " });
	};
	return html`
		<${Asking} asked=${asked} title="${verb} ${object(tasks)}${status ? "?" : ""}" action=${isSeverity ? "Set severity" : asked.verb} onSubmit=${onSubmit} onClose=${onClose}>
			${choices && html`
				<fieldset class="choices"><legend>${isSeverity ? "Severity" : "Reason"}</legend>
					${choices.map(([name, text]) => html`
						<label><input type="radio" name="choice" value=${name} required defaultChecked=${preset === name}
							autofocus=${name === (preset ?? choices[0][0])} /> ${text}</label>`)}
				</fieldset>`}
			<label class="field"><span>Comment${isOptional ? " (optional)" : ""}</span>
				<textarea name="comment" rows="4" maxlength="4000" required=${!isOptional} defaultValue=${typed()} autofocus=${!choices}
					onInput=${({ target }) => keepDraft(asked, target.value)} />
			</label>
			${status === "dismissed" && html`<${Input} label="Until (optional)" name="until" type="date" min=${dateValue(Date.now() + 86_400_000)} defaultValue=${asked.until ?? end} />`}
			<p class="muted hint"><kbd>Ctrl</kbd>+<kbd>Enter</kbd> to submit (<kbd>⌘</kbd> on Mac)</p>
		<//>`;
}

/** Ask for an assignee. Only the button Unassign unassigns. */
function AssignDialog({ asked }) {
	const page = usePage();
	const { tasks, who } = asked;
	const { me } = page.session.get();
	const { data } = useAnswer("groups", { by: "assignee", limit: 200 });
	const mine = me.user ?? me.key;
	const people = new Set([mine, ...(data?.groups.map(({ value }) => value) ?? [])]);
	const isSome = (test) => tasks.ready || tasks.some(test);
	const assign = (who) => {
		asked.who = who;
		const verb = who ? "Assign" : "Unassign";
		return submit(page, asked, { fields: { assignee: who }, verb, what: who ? `Assigned to ${cut(who, 60)}: ` : done(verb) });
	};
	const instead = (who, text) => html`<button type="button" onClick=${() => assign(who).catch(page.changes.sayError)}>${text}</button>`;
	return html`
		<${Asking} asked=${asked} title="Assign ${object(tasks)}" action="Assign" onSubmit=${({ elements }) => assign(elements.who.value.trim())}>
			<${Input} label="Assignee" name="who" maxlength="200" list="people" required pattern=".*\\S.*" autofocus defaultValue=${who} />
			<datalist id="people">${[...people].map((each) => each && html`<option value=${each} />`)}</datalist>
			<p class="buttons instead">
				${isSome(({ assignee }) => assignee !== mine) && instead(mine, "Assign to me")}
				${isSome(({ assignee }) => assignee) && instead("", "Unassign")}
				${tasks.length === 1 && tasks[0]?.assignee && html`<span class="muted">Assigned to <${Text} of=${tasks[0].assignee} /></span>`}
			</p>
		<//>`;
}

function DeleteDialog({ asked }) {
	const { api, changes, dialog, router } = usePage();
	const { what, path, to, children } = asked;
	const onSubmit = async () => {
		await api.request("DELETE", path);
		if (dialog.get() === asked) dialog.set(null);
		changes.say(`Deleted ${what}.`);
		changes.changed.set([]);
		router.go(to, true);
	};
	return html`
		<${Asking} asked=${asked} title="Delete ${what}?" action="Delete" wrong="Couldn't delete" onSubmit=${onSubmit}>
			<p>${children} This can't be undone.</p>
			<${Input} label="Type “delete” to confirm" required pattern="delete" autofocus />
		<//>`;
}

export function DeleteButton(asked) {
	const { dialog, session } = usePage();
	return mayDelete(useStore(session))
		&& html`<button class="quiet" onClick=${() => dialog.set({ kind: "delete", ...asked })}>Delete…</button>`;
}

const State = ({ of }) => html`<${Decision} of=${of} />${of.assignee && html`, <${Text} of=${of.assignee} />`}`;

/** Show what others did to a finding since it was `shown`. */
function ChangesOfOthers({ shown, now }) {
	const { data } = useAnswer(pathOf("tasks", now.id, "/history"));
	const since = data?.history.filter((entry) => entry.at > shown.updatedAt);
	return html`
		<li>
			<h3><a href=${link("findings", now.id)} target="_blank"><${Text} of=${now.title} /></a></h3>
			<p>Was <${State} of=${shown} />, now <${State} of=${now} />.</p>
			<ol class="history">${since?.map((entry) => html`<${HistoryEntry} entry=${entry} />`)}</ol>
		</li>`;
}

/** Ask whether to apply a change to findings that someone else changed first. */
function ConflictDialog({ of: { change, others } }) {
	const { carryOut, conflicts, sayError } = usePage().changes;
	const { tasks, goesOn, verb, fields: { comment, reason, assignee, severity } } = change;
	const met = new Map(others.map((now) => [now.id, now]));
	const rest = tasks.filter(({ id }) => !met.has(id));
	const close = () => conflicts.set(conflicts.get().slice(1));
	const apply = (to) => () => {
		close();
		carryOut({ ...change, tasks: to }).catch(sayError);
	};
	const which = tasks.length === 1 ? "this finding" : `${number(others.length)} of these ${count(tasks.length, "finding")}`;
	return html`
		<${Dialog} title="Someone else changed ${which}" onClose=${comment ? null : close} wide>
			<ul class="items">
				${others.slice(0, MOST_CONFLICTS).map((now) => html`<${ChangesOfOthers} shown=${tasks.find(({ id }) => id === now.id)} now=${now} />`)}
			</ul>
			${goesOn && html`<p>The findings before these are saved.</p>`}
			<p hidden=${verb === "Undo"}>Your change: ${verb.toLowerCase().replace(/ of$/, "")}${reason && ` as ${REASONS[reason].toLowerCase()}`}${assignee && ` to ${assignee}`}${severity && ` to ${severity}`}.</p>
			${comment && html`<p class="lines said"><${Text} of=${comment} /></p>`}
			<div class="buttons end">
				<button type="button" onClick=${close}>Discard my change</button>
				<button type="button" class=${rest.length ? "" : "primary"} onClick=${apply(tasks.map((task) => met.get(task.id) ?? task))}>
					${verb} ${object(tasks)} anyway</button>
				${rest.length > 0 && html`<button type="button" class="primary" onClick=${apply(rest)}>
					Skip ${number(others.length)} and ${verb.toLowerCase()} ${number(rest.length)}</button>`}
			</div>
		<//>`;
}

function Help() {
	const { dialog, keys } = usePage();
	const on = useStore(keys.on);
	const close = () => dialog.set(null);
	return html`
		<${Dialog} title="Keyboard shortcuts" onClose=${close} wide>
			<dl class="keys shortcuts">
				${SHORTCUTS.map(([row, text]) => html`<div><dt>${row.split(" ").map((key) => html`<kbd>${key}</kbd> `)}</dt><dd>${text.replace("…", "")}</dd></div>`)}
			</dl>
			<label class="check"><input type="checkbox" checked=${on} onChange=${() => keys.on.set(!on)} /> Enable shortcuts</label>
			<div class="buttons end"><button class="primary" onClick=${close}>Close</button></div>
		<//>`;
}

const DIALOGS = { comment: CommentDialog, assign: AssignDialog, severity: CommentDialog, delete: DeleteDialog, help: Help };

export function Dialogs() {
	const { dialog, changes } = usePage();
	const asked = useStore(dialog);
	const [met] = useStore(changes.conflicts);
	const Asked = DIALOGS[asked?.kind];
	if (Asked) return html`<${Asked} asked=${asked} />`;
	return met && html`<${ConflictDialog} of=${met} key=${met.others[0].id} />`; // after an open dialog
}
