// The small parts that the views are made of.

import { DESCRIPTION } from "./api.js";
import { html, useEffect, useLayoutEffect, usePage, useRef, useState } from "./lib.js";
import { link } from "./route.js";
import { age, capital, moment, RUN_NAMES, STATUS_NAMES, webAddress } from "./words.js";

const ICONS = {
	open: html`<circle cx="8" cy="8" r="5.75" />`,
	in_progress: html`<circle cx="8" cy="8" r="5.75" /><path class="filled" d="M8 4.5a3.5 3.5 0 0 1 0 7z" />`,
	resolved: html`<circle cx="8" cy="8" r="5.75" /><path d="M5.4 8.2l1.8 1.8 3.4-3.8" />`,
	dismissed: html`<circle cx="8" cy="8" r="5.75" /><path d="M4.2 11.8l7.6-7.6" />`,
	running: html`<circle cx="8" cy="8" r="5.75" stroke-dasharray="3 2.2" />`,
	completed: html`<path d="M3 8.4l3.4 3.4L13 4.8" />`,
	failed: html`<path d="M4 4l8 8M12 4l-8 8" />`,
};
const BARS = { critical: 4, high: 3, medium: 2, low: 1, info: 0 };

const Badge = ({ kind, icon, children }) => html`
	<span class="badge ${kind}"><svg class="icon" viewBox="0 0 16 16" aria-hidden="true">${icon}</svg><span>${children}</span></span>`;

export const Status = ({ is }) => html`<${Badge} kind="status-${is}" icon=${ICONS[is]}>${STATUS_NAMES[is] ?? RUN_NAMES[is]}<//>`;

export const Severity = ({ is }) => html`
	<${Badge} kind="severity-${is}" icon=${[1, 2, 3, 4].map((n) => html`
		<rect class=${n <= BARS[is] ? "filled" : "faint"} x=${4 * n - 4} y=${12 - 3 * n} width="3" height=${3 * n + 2} rx="1" />`)}>${capital(is)}<//>`;

export const Verdict = ({ gate: { pass } }) => html`
	<${Badge} kind=${pass ? "status-resolved" : "severity-critical"} icon=${pass ? ICONS.completed : ICONS.failed}>${pass ? "Pass" : "Fail"}<//>`;

/** Show strangers' text: it turns nothing around beside it. */
export const Text = ({ of, missing = "–" }) => ((of ?? "") === "" ? html`<span class="muted">${missing}</span>` : html`<bdi>${String(of)}</bdi>`);

/** Link to the web, or only name what has no address. */
export const Outside = ({ href, children }) => (href ? html`<a href=${href} target="_blank" rel="noopener noreferrer">${children}</a>` : children);

export const Address = ({ url }) => html`<${Outside} href=${webAddress(url ?? "")?.href}><${Text} of=${url} /><//>`;

export const Time = ({ at, long }) => html`<time datetime=${at} title=${moment(at)}>${long ? moment(at) : age(at)}</time>`;

export const Fact = ({ name, of = true, children }) => of && html`<div class="fact"><dt>${name}</dt><dd>${children}</dd></div>`;

export const Section = ({ title, of = true, children }) => (of ? html`<section><h2>${title}</h2>${children}</section>` : null);

export const Place = ({ of: { projectType, targetUrl, branch } }) => html`
	<${Fact} name="Type"><a href=${link("project-types", projectType)}><${Text} of=${projectType} /></a><//>
	<${Fact} name="Target"><${Address} url=${targetUrl} /><//>
	<${Fact} name="Branch"><${Text} of=${branch} missing="Main line" /><//>`;

const Failed = ({ error, retry }) => html`
	<div class="notice failed" role="alert">
		<h2>${error.status === 404 ? "There is nothing here" : "That did not work"}</h2>
		<p class="lines">${error.message}</p>
		${retry && html`<button onClick=${retry}>Try again</button>`}
	</div>`;

export const Nothing = ({ title, children }) => html`<div class="notice"><h2>${title}</h2>${children}</div>`;

const HowToSend = () => html`
	<p>Agents and scanners send findings with a key of level agent. SARIF of any scanner is taken as it is:</p>
	<pre class="sample">findings-service scan --url ${new URL("../", import.meta.url).href} --type bandit report.sarif</pre>
	<p>Programs of your own begin with <a href=${DESCRIPTION}>the description of the API</a>.</p>`;

/** Stand in place of an empty list. */
export const NoneListed = ({ what, view, isFiltered }) => (isFiltered
	? html`<${Nothing} title="No ${what} is like that"><p><a href=${link(view)}>Show all ${what}s</a></p><//>`
	: html`<${Nothing} title="No ${what}s yet"><${HowToSend} /><//>`);

/** Show what was loaded, or how that stands, under `title` until there is a heading. */
export const Loaded = ({ from: { data, error, reload }, what, title, children }) => html`
	${!data && title && html`<${Heading} title=${title} />`}
	${error && html`<${Failed} error=${error} retry=${reload} />`}
	${data && error?.status !== 400 ? children(data) : !error && html`<p class="notice loading" role="status">Loading ${what} …</p>`}`;

let shown = 0; // headings: the first takes no focus

/** Head a view: name the document, and take the focus when the view has changed. */
export function Heading({ title, of = title, total, children }) {
	const heading = useRef(null);
	useEffect(() => {
		document.title = `${of} · Findings`;
	}, [of]);
	useEffect(() => {
		if (shown++ && document.activeElement === document.body) heading.current.focus({ preventScroll: true });
	}, []);
	return html`
		<header class="heading"><h1 id="heading" tabindex="-1" ref=${heading}><${Text} of=${title} /></h1>
			${total !== undefined && html`<p class="total" role="status">${total}</p>`}${children}</header>`;
}

/** Show a dialog over all else. Closed, it gives the focus back. */
export function Dialog({ title, onClose, wide, children }) {
	const box = useRef(null);
	const close = useRef(onClose);
	close.current = onClose;
	useLayoutEffect(() => {
		const [dialog, before] = [box.current, document.activeElement];
		const cancel = (event) => {
			event.preventDefault();
			close.current?.();
		};
		const closed = () => (close.current ? close.current() : dialog.showModal()); // browsers let Escape through in the end
		dialog.addEventListener("cancel", cancel);
		dialog.addEventListener("close", closed);
		dialog.showModal();
		return () => {
			dialog.removeEventListener("close", closed);
			dialog.close();
			if (before?.isConnected) before.focus({ preventScroll: true });
		};
	}, []);
	return html`
		<dialog ref=${box} class=${wide ? "wide" : ""} aria-label=${title}>
			<h2>${title}</h2>
			${children}
		</dialog>`;
}

/** Keep what was typed where it is refused. `other` stands beside the button. */
export function Form({ action, onSubmit, other, failure, children, ...more }) {
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
			${error && html`<${Failed} error=${error} />`}
			<div class="buttons end">${other}<button class="primary" disabled=${busy}>${action}</button></div>
		</form>`;
}

export const Input = ({ label, ...more }) => html`<label class="field"><span>${label}</span><input autocomplete="off" ...${more} /></label>`;

/** A text field whose value counts on Enter, or when it is left. */
export function Field({ label, value, onChange, options = [], type = "text" }) {
	const id = `known-${label}`; // there is one of each name
	const [draft, setDraft] = useState(null);
	useEffect(() => setDraft(null), [value]);
	return html`
		<label class="field"><span>${label}</span>
			<input type=${type} value=${draft ?? value ?? ""} list=${options.length ? id : undefined} autocomplete="off" onInput=${(event) => setDraft(event.target.value)}
				onChange=${(event) => onChange(event.target.value.trim())} />
			<datalist id=${id}>${options.map((each) => html`<option value=${each} />`)}</datalist>
		</label>`;
}

export const Select = ({ label, name, value, onChange, options }) => html`
	<label class="field"><span>${label}</span>
		<select name=${name} value=${value} onChange=${(event) => onChange?.(event.target.value)}>
			${options.map(([each, text]) => html`<option value=${each} selected=${each === (value ?? "")}>${text}</option>`)}
		</select>
	</label>`;

/** Toggle the values of a list with commas. */
export function Toggles({ label, names, value, onChange }) {
	const chosen = value?.split(",") ?? [];
	const toggle = (name) => onChange(chosen.includes(name) ? chosen.filter((each) => each !== name) : [...chosen, name]);
	return html`
		<div class="toggles" role="group" aria-label=${label}>
			${Object.entries(names).map(([name, text]) => html`
				<button aria-pressed=${String(chosen.includes(name))} onClick=${() => toggle(name)}>${text}</button>`)}
		</div>`;
}

export function Copy({ text }) {
	const { say } = usePage().changes;
	const copy = async () => {
		try {
			await navigator.clipboard.writeText(text);
			say("Copied.");
		} catch {
			say("This browser does not let the page copy."); // there is no clipboard without TLS
		}
	};
	return html`<button class="quiet" onClick=${copy}>Copy</button>`;
}
