// The small parts that the views are made of.

import { DESCRIPTION } from "./api.js";
import { html, useEffect, useLayoutEffect, useLoad, usePage, useRef, useState } from "./lib.js";
import { link } from "./route.js";
import { age, capital, moment, number, RUN_NAMES, SEVERITIES, STATUS_NAMES, webAddress } from "./words.js";

const ring = html`<circle cx="8" cy="8" r="5.75" />`;
const ICONS = {
	open: ring,
	in_progress: [ring, html`<path class="filled" d="M8 4.5a3.5 3.5 0 0 1 0 7z" />`],
	resolved: [ring, html`<path d="M5.4 8.2l1.8 1.8 3.4-3.8" />`],
	dismissed: [ring, html`<path d="M4.2 11.8l7.6-7.6" />`],
	running: html`<circle cx="8" cy="8" r="5.75" stroke-dasharray="3 2.2" />`,
	completed: html`<path d="M3 8.4l3.4 3.4L13 4.8" />`,
	failed: html`<path d="M4 4l8 8M12 4l-8 8" />`,
};

const Badge = ({ kind, icon, children }) => html`
	<span class="badge ${kind}"><svg class="icon" viewBox="0 0 16 16" aria-hidden="true">${icon}</svg>${children}</span>`;

export const Status = ({ is, name = STATUS_NAMES[is] ?? RUN_NAMES[is] }) => html`<${Badge} kind="status-${is}" icon=${ICONS[is]}>${name}<//>`;

export const Severity = ({ is }) => html`
	<${Badge} kind="severity-${is}" icon=${[1, 2, 3, 4].map((n) => html`
		<rect class=${n + SEVERITIES.indexOf(is) < 5 ? "filled" : "faint"} x=${4 * n - 4} y=${12 - 3 * n} width="3" height=${3 * n + 2} rx="1" />`)}>${capital(is)}<//>`;

/** Show the result of the gate: `pass` is null while the run is running. */
export const Verdict = ({ pass }) => (pass === null
	? html`<${Badge} kind="muted" icon=${ICONS.running}>Pending<//>`
	: html`<${Status} is=${pass ? "completed" : "failed"} name=${pass ? "Pass" : "Fail"} />`);

/** Show untrusted text: it cannot change the direction of the text beside it. */
export const Text = ({ of, missing = "–" }) => ((of ?? "") === "" ? html`<span class="muted">${missing}</span>` : html`<bdi>${String(of)}</bdi>`);

/** Link to the web, or show only the name if the address is missing. */
export const Outside = ({ href, children }) => (href ? html`<a href=${href} target="_blank" rel="noopener noreferrer">${children}</a>` : children);

export const Address = ({ url }) => html`<${Outside} href=${webAddress(url ?? "")?.href}><${Text} of=${url} /><//>`;

export const Time = ({ at, long }) => html`<time datetime=${at} title=${moment(at)}>${long ? moment(at) : age(at)}</time>`;

/** Name who did something: a person or else the key. Without either, the service itself did it. */
export const By = ({ of: { user, by } }) => html`<strong><${Text} of=${user ?? by} missing="The service" /></strong>`;

const isWanted = (given) => !("of" in given) || Boolean(given.of); // an `of` that is undefined is empty, too

export const Fact = ({ name, children, ...given }) => isWanted(given) && html`<div class="fact"><dt>${name}</dt><dd>${children}</dd></div>`;

export const Section = ({ title, children, ...given }) => isWanted(given) && html`<section><h2>${title}</h2>${children}</section>`;

export const Place = ({ of: { projectType, targetUrl, branch } }) => html`
	<${Fact} name="Type"><a href=${link("project-types", projectType)}><${Text} of=${projectType} /></a><//>
	<${Fact} name="Target"><${Address} url=${targetUrl} /><//>
	<${Fact} name="Branch"><${Text} of=${branch} missing="Main branch" /><//>`;

export const Nothing = ({ title, children, ...more }) => html`<div class="notice" ...${more}><h2>${title}</h2>${children}</div>`;

const Failed = ({ title, text, retry }) => html`
	<${Nothing} class="notice failed" role="alert" title=${title}>
		<p class="lines">${text}</p>
		${retry && html`<button onClick=${retry}>Try again</button>`}
	<//>`;

/** Replace an empty list. A filtered list also shows how to send findings if nothing is stored at all. */
export function NoneListed({ what, view, isFiltered }) {
	const kind = what === "run" ? "runs" : "tasks";
	const { data, error } = useLoad(async (get) => (isFiltered ? (await get(kind, { limit: 1 })).total : 0), [kind, isFiltered]);
	if (data === null && !error) return html`<${Skeleton} what="${what}s" />`;
	if (data !== 0) {
		return html`<${Nothing} title="No ${what}s match these filters"><p><a href=${link(view, null, { sort: view === "findings" && "severity" })}>Clear filters</a></p><//>`;
	}
	return html`
		<${Nothing} title="No ${what}s yet">
			<p>Use an agent key. SARIF from any scanner works:</p>
			<pre class="sample">findings-service scan --url ${new URL("../../", import.meta.url).href} --type bandit report.sarif</pre>
			<p>Building an integration? See the <a href=${DESCRIPTION}>API reference</a>.</p>
		<//>`;
}

const Skeleton = ({ what }) => html`<div class="loading" role="status"><span class="hidden">Loading ${what} …</span></div>`;

/** Show loaded data, an error or a skeleton, with `title` as the heading until there is data. `what` is a name such as "the run". */
export function Loaded({ from: { data, error, reload }, what, title, children }) {
	return html`
		${!data && title && html`<${Heading} title=${title} />`}
		${error && (error.status === 404
			? html`<${Failed} title="${capital(what.replace("the ", ""))} not found" text="It may have been deleted." />`
			: html`<${Failed} title="Couldn't load ${what}" text=${error.message} retry=${reload} />`)}
		${data && ![400, 404].includes(error?.status) ? children(data) : !error && html`<${Skeleton} what=${what} />`}`;
}

let shown = 0; // number of headings; the first one does not take the focus

/** Show the heading of a view, and set the title of the document. It takes the focus when the view changes. */
export function Heading({ title, of = title, total, children }) {
	const heading = useRef(null);
	useEffect(() => void (document.title = `${of} · Findings`), [of]);
	useEffect(() => {
		if (shown++ && document.activeElement === document.body) heading.current.focus({ preventScroll: true });
	}, []);
	return html`
		<header class="heading"><h1 id="heading" tabindex="-1" ref=${heading}><${Text} of=${title} /></h1>
			${total !== undefined && html`<p class="total" role="status">${total}</p>`}${children}</header>`;
}

/** A modal dialog. Escape calls `onClose`; closing returns the focus. */
export function Dialog({ title, onClose, wide, children }) {
	const box = useRef(null);
	const close = (event) => {
		event.preventDefault();
		if (!box.current) return; // already removed
		if (onClose) onClose();
		else if (!box.current.open) box.current.showModal(); // the second Escape closes a dialog in spite of preventDefault
	};
	useLayoutEffect(() => {
		const [dialog, before] = [box.current, document.activeElement];
		dialog.showModal();
		return () => {
			dialog.close();
			if (before?.isConnected) before.focus({ preventScroll: true });
		};
	}, []);
	return html`<dialog ref=${box} class=${wide ? "wide" : ""} aria-label=${title} onCancel=${close} onClose=${close}><h2>${title}</h2>${children}</dialog>`;
}

/** A form that shows why `onSubmit` failed, under the title `wrong`. */
export function Form({ action, onSubmit, other, failure, wrong = "Couldn't save", children, ...more }) {
	const [{ error, busy }, setState] = useState({ error: failure });
	const submit = async (event) => {
		event.preventDefault();
		if (busy) return;
		setState({ busy: true });
		try {
			await onSubmit(event.target);
			setState({});
		} catch (refused) {
			setState({ error: refused });
		}
	};
	const onKeyDown = (event) => {
		if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
		event.preventDefault();
		event.currentTarget.requestSubmit();
	};
	return html`
		<form onSubmit=${submit} onKeyDown=${onKeyDown} ...${more}>
			${children}
			${error && html`<${Failed} title=${wrong} text=${error.message} />`}
			<div class="buttons end">${other}<button class="primary" disabled=${busy}>${action}</button></div>
		</form>`;
}

/** A button that opens a menu; a click on an item closes it. */
export const Menu = ({ id, name, label, children }) => html`
	<button class="quiet" popovertarget=${id} aria-label=${label}>${name} <span aria-hidden="true">▾</span></button>
	<div id=${id} class="menu" popover="auto" onClick=${(event) => event.currentTarget.hidePopover()}>${children}</div>`;

export const Input = ({ label, children, ...more }) => html`
	<label class="field"><span>${label}</span><input autocomplete="off" ...${more} />${children}</label>`;

/** A text field whose value counts on Enter, or when it is left. */
export function Field({ label, value, onChange, options = [], ...more }) {
	const id = `known-${label}`;
	const [draft, setDraft] = useState(null);
	useLayoutEffect(() => setDraft(null), [value]); // at once: later it would take what is typed
	const commit = (event) => onChange(event.target.value.trim());
	const leave = (event) => event.key === "Enter" && event.target.blur();
	const events = more.type === "date" ? { onBlur: commit, onKeyDown: leave } : { onChange: commit }; // each digit of a date is a change
	return html`
		<${Input} label=${label} value=${draft ?? value ?? ""} list=${options.length ? id : undefined} onInput=${(event) => setDraft(event.target.value)}
			...${events} ...${more}><datalist id=${id}>${options.map((each) => html`<option value=${each} />`)}</datalist><//>`;
}

export const Select = ({ label, name, value, onChange, options }) => html`
	<label class="field"><span>${label}</span>
		<select name=${name} value=${value} onChange=${(event) => onChange?.(event.target.value)}>
			${options.map(([each, text]) => html`<option value=${each} selected=${each === (value ?? "")}>${text}</option>`)}
		</select>
	</label>`;

export function Toggles({ label, names, value, onChange, counts }) {
	const chosen = value?.split(",") ?? [];
	const toggle = (name) => onChange(Object.keys(names).filter((each) => chosen.includes(each) !== (each === name)));
	return html`
		<div class="toggles" role="group" aria-label=${label}>
			<span class="label" aria-hidden="true">${label}</span>
			${Object.entries(names).map(([name, text]) => html`
				<button aria-pressed=${String(chosen.includes(name))} onClick=${() => toggle(name)}>
					${text}${counts && html` <span class="count">${number(counts[name])}</span>`}</button>`)}
		</div>`;
}

/** A button that copies a text, which may be a function. */
export function Copy({ text, name = "Copy" }) {
	const { say } = usePage().changes;
	const copy = async () => {
		try {
			await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
			say("Copied.");
		} catch {
			say("Couldn't copy: the browser doesn't allow it here."); // it requires HTTPS
		}
	};
	return html`<button class="quiet" onClick=${copy}>${name}</button>`;
}
