// The page: what stands around every view, and which view is shown.

import { session, signOut } from "./api.js";
import { discardFirst, sending, sendUnsent, toast, unsent } from "./changes.js";
import { Finding } from "./finding.js";
import { Findings, startSearch } from "./findings.js";
import { Help, helpOpen } from "./help.js";
import { useKeys } from "./keys.js";
import { html, render, useEffect, useStore } from "./lib.js";
import { Overview } from "./overview.js";
import { Heading, Nothing } from "./parts.js";
import { go, link, route } from "./route.js";
import { Run } from "./run.js";
import { Runs } from "./runs.js";
import { SignIn, SignInAgain } from "./signin.js";
import { TriageDialogs, undoLast } from "./triage.js";
import { ProjectType, ProjectTypes } from "./types.js";
import { count } from "./words.js";

const VIEWS = {
	overview: { name: "Overview", list: Overview },
	findings: { name: "Findings", list: Findings, one: Finding, query: { status: "open", sort: "severity" } },
	runs: { name: "Runs", list: Runs, one: Run },
	"project-types": { name: "Project types", list: ProjectTypes, one: ProjectType },
};
const TOAST_TIME = 10_000; // milliseconds; u undoes later too

function Unknown() {
	return html`
		<${Heading} title="Not found" />
		<${Nothing} title="There is nothing at this address"><p><a href=${link("overview")}>Overview</a></p><//>`;
}

function App() {
	const { key, again } = useStore(session);
	if (!key) return html`<${SignIn} />`;
	return html`<${Frame} />${again && html`<${SignInAgain} />`}`;
}

function Frame() {
	const { view, id, query } = useStore(route);
	const shown = Object.hasOwn(VIEWS, view) ? VIEWS[view] : {};
	const View = (id === null ? shown.list : shown.one) ?? Unknown;
	useEffect(() => void (id !== null && scrollTo(0, 0)), [view, id]);
	useKeys({ "?": () => helpOpen.set(true), "/": startSearch }, true);
	useEffect(() => void sendUnsent(), []);
	return html`
		<a class="skip" href="#heading" onClick=${skip}>Skip to the content</a>
		<header class="top">
			<nav aria-label="Views">
				${Object.entries(VIEWS).map(([name, { name: words, query: given }]) => html`
					<a href=${link(name, null, given)} aria-current=${name === view ? "page" : undefined}>${words}</a>`)}
			</nav>
			<div class="buttons">
				<button class="quiet" onClick=${() => helpOpen.set(true)}>Keys <kbd aria-hidden="true">?</kbd></button>
				<button class="quiet" onClick=${signOut}>Sign out</button>
			</div>
		</header>
		<main id="content"><${View} key=${`${view}/${id ?? ""}`} id=${id} query=${query} /></main>
		<${Outbox} />
		<${Toast} />
		<${TriageDialogs} />
		<${Help} />`;
}

function skip(event) {
	event.preventDefault();
	document.getElementById("heading")?.focus();
}

function Outbox() {
	const changes = useStore(unsent);
	const busy = useStore(sending);
	if (!changes.length) return null;
	const [{ what, refused }] = changes;
	return html`
		<section class="outbox" aria-label="Not sent yet">
			<p role="alert">${count(changes.length, "change")} not sent yet: ${what}.
				${refused ? html` <strong class="lines">${refused}</strong>` : " It is kept in this tab, and tried again by itself."}</p>
			<div class="buttons">
				${!refused && html`<button disabled=${busy} onClick=${sendUnsent}>Retry</button>`}
				<button disabled=${busy} onClick=${discardFirst}>Discard</button>
			</div>
		</section>`;
}

function Toast() {
	const said = useStore(toast);
	useEffect(() => {
		const timer = said.text && setTimeout(() => toast.set({ text: "", undo: false }), TOAST_TIME);
		return () => clearTimeout(timer);
	}, [said]);
	return html`
		<div class="toast ${said.text ? "" : "hidden"}">
			<p role="status">${said.text}</p>
			${said.undo && html`<button class="quiet" onClick=${undoLast}>Undo <kbd aria-hidden="true">u</kbd></button>`}
		</div>`;
}

history.scrollRestoration = "manual";
render(html`<${App} />`, document.getElementById("app"));
