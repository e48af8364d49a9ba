// The page: shared state, the frame and one view.

import { createApi } from "./api.js";
import { createChanges } from "./changes.js";
import { Finding } from "./finding.js";
import { Findings } from "./findings.js";
import { createKeys, useKeys } from "./keys.js";
import { createStore, html, PageContext, render, useEffect, usePage, useStore } from "./lib.js";
import { Overview } from "./overview.js";
import { Heading, Nothing, Text } from "./parts.js";
import { createRouter, link } from "./route.js";
import { Run } from "./run.js";
import { Runs } from "./runs.js";
import { createSession, mayTriage } from "./session.js";
import { SignIn, SignInAgain } from "./signin.js";
import { Dialogs, readDraft } from "./triage.js";
import { ProjectType, ProjectTypes } from "./types.js";
import { Webhooks } from "./webhooks.js";
import { count, object } from "./words.js";

const VIEWS = {
	overview: { name: "Overview", list: Overview },
	findings: { name: "Findings", list: Findings, one: Finding, query: { status: "open", sort: "severity" } },
	runs: { name: "Runs", list: Runs, one: Run },
	"project-types": { name: "Project types", list: ProjectTypes, one: ProjectType },
	webhooks: { name: "Webhooks", list: Webhooks, isFull: true },
};
const TOAST_TIME = 10_000; // milliseconds; u undoes later too

function createPage() {
	const session = createSession();
	const api = createApi(session);
	return {
		session,
		api,
		router: createRouter(),
		keys: createKeys(),
		changes: createChanges(api),
		dialog: createStore(readDraft()), // what is asked for: {kind, …}
		memory: { lists: {}, places: new Map() }, // left for the next view
	};
}

function Unknown() {
	return html`
		<${Heading} title="Not found" />
		<${Nothing} title="There is nothing at this address"><p><a href=${link("overview")}>Overview</a></p><//>`;
}

function App() {
	const { me, again, asking } = useStore(usePage().session);
	if (asking) return null;
	if (!me) return html`<${SignIn} />`;
	return html`<${Frame} />${again && html`<${SignInAgain} />`}`;
}

function Frame() {
	const { session, router, changes, dialog, memory } = usePage();
	const { view, id, query } = useStore(router);
	const { key, me } = useStore(session);
	const views = Object.entries(VIEWS).filter(([, { isFull }]) => !isFull || mayTriage({ me }));
	const shown = new Map(views).get(view);
	const View = (id === null ? shown?.list : shown?.one) ?? Unknown;
	useEffect(() => void (id !== null && scrollTo(0, 0)), [view, id]);
	const help = () => dialog.set({ kind: "help" });
	const search = () => {
		memory.searching = true;
		router.go(link("findings"));
	};
	const back = () => id !== null && router.go(link(view));
	useKeys({ "?": help, "/": search, Escape: back }, true);
	useEffect(() => {
		session.refresh();
		changes.sendUnsent();
	}, []);
	const skip = (event) => {
		event.preventDefault();
		document.getElementById("heading")?.focus();
	};
	return html`
		<a class="skip" href="#heading" onClick=${skip}>Skip to the content</a>
		<header class="top">
			<nav aria-label="Views">
				${views.map(([name, { name: words, query: given }]) => html`
					<a href=${link(name, null, given)} aria-current=${name === view ? "page" : undefined}>${words}</a>`)}
			</nav>
			<div class="buttons">
				<span class="me muted" title="Key ${me.key}">
					<${Text} of=${me.user ?? me.key} /> · <${Text} of=${me.client} /> · ${me.level}</span>
				<button class="quiet" onClick=${help}>Keys <kbd aria-hidden="true">?</kbd></button>
				${key && html`<button class="quiet" onClick=${session.signOut}>Sign out</button>`}
			</div>
		</header>
		<main id="content"><${View} key=${`${view}/${id ?? ""}`} id=${id} query=${query} /></main>
		<${Outbox} />
		<${Toast} />
		<${Dialogs} />`;
}

function Outbox() {
	const { unsent, sending, sendUnsent, discardFirst } = usePage().changes;
	const changes = useStore(unsent);
	const busy = useStore(sending);
	if (!changes.length) return null;
	const [{ what, tasks, refused }] = changes;
	return html`
		<section class="outbox" aria-label="Not sent yet">
			<p role="alert">${count(changes.length, "change")} not sent yet: ${what}${object(tasks)}.
				${refused ? html` <strong class="lines">${refused}</strong>` : " It is kept in this tab, and tried again by itself."}</p>
			<div class="buttons">
				${!refused && html`<button disabled=${busy} onClick=${sendUnsent}>Retry</button>`}
				<button disabled=${busy} onClick=${discardFirst}>Discard</button>
			</div>
		</section>`;
}

function Toast() {
	const { toast, say, sayError, undo } = usePage().changes;
	const said = useStore(toast);
	useEffect(() => {
		const timer = said.text && setTimeout(() => say(""), TOAST_TIME);
		return () => clearTimeout(timer);
	}, [said]);
	return html`
		<div class="toast ${said.text ? "" : "hidden"}">
			<p role="status">${said.text}</p>
			${said.undo && html`<button class="quiet" onClick=${() => undo().catch(sayError)}>Undo <kbd aria-hidden="true">u</kbd></button>`}
		</div>`;
}

history.scrollRestoration = "manual";
render(html`<${PageContext.Provider} value=${createPage()}><${App} /><//>`, document.getElementById("app"));
