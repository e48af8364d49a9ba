// The page: shared state, the frame and one view.

import { createApi, DESCRIPTION } from "./api.js";
import { createChanges, UNDO_TIME } from "./changes.js";
import { Finding } from "./finding.js";
import { Findings } from "./findings.js";
import { createKeys, useKeys } from "./keys.js";
import { createStore, html, PageContext, render, useEffect, usePage, useState, useStore } from "./lib.js";
import { Overview } from "./overview.js";
import { Heading, Menu, Nothing, Text } from "./parts.js";
import { Proposals } from "./proposals.js";
import { createRouter, link, toFindings } from "./route.js";
import { Run } from "./run.js";
import { Runs } from "./runs.js";
import { createSession, mayDelete } from "./session.js";
import { ICON, SignIn, SignInAgain } from "./signin.js";
import { Dialogs, readDraft } from "./triage.js";
import { ProjectType, ProjectTypes } from "./types.js";
import { Webhooks } from "./webhooks.js";
import { capital, count, object } from "./words.js";

const VIEWS = {
	overview: { name: "Overview", list: Overview },
	findings: { name: "Findings", list: Findings, one: Finding, to: toFindings() },
	proposals: { name: "Proposals", list: Proposals },
	runs: { name: "Runs", list: Runs, one: Run },
	"project-types": { name: "Project types", list: ProjectTypes, one: ProjectType },
	webhooks: { name: "Webhooks", list: Webhooks, isFull: true },
};
const THEMES = ["system", "light", "dark"];

const session = createSession();
const api = createApi(session);
const page = {
	session,
	api,
	router: createRouter(),
	keys: createKeys(),
	changes: createChanges(api),
	dialog: createStore(readDraft()), // the open dialog: {kind, …}
	memory: { lists: {}, cursors: new Map() }, // left for the next view
};

const Unknown = () => html`
	<${Heading} title="Page not found" />
	<${Nothing} title="There is no view at this address"><p><a href=${link("overview")}>Go to the overview</a></p><//>`;

function App() {
	const { me, again, asking } = useStore(usePage().session);
	return !asking && (me ? html`<${Frame} />${again && html`<${SignInAgain} />`}` : html`<${SignIn} />`);
}

function Frame() {
	const { session, router, changes, dialog, memory } = usePage();
	const undo = () => changes.undo().catch(changes.sayError);
	const { view, id, query } = useStore(router);
	const { me } = useStore(session);
	const views = Object.entries(VIEWS).filter(([, { isFull }]) => !isFull || mayDelete({ me }));
	const View = views.find(([name]) => name === view)?.[1][id === null ? "list" : "one"] ?? Unknown;
	useEffect(() => void (id !== null && scrollTo(0, 0)), [view, id]);
	useEffect(() => { // `scrollIntoView` would move the start of the Tab order
		const tab = document.querySelector(".top [aria-current]");
		const nav = tab?.parentElement;
		if (nav) nav.scrollLeft = tab.offsetLeft + tab.offsetWidth - nav.offsetLeft - nav.clientWidth;
	}, [view]);
	const help = () => dialog.set({ kind: "help" });
	const search = () => {
		memory.searching = true;
		router.go(toFindings());
	};
	useKeys({ u: undo, "?": help, "/": search, Escape: () => id !== null && router.go(link(view)) }, true);
	useEffect(() => {
		session.refresh();
		changes.sendUnsent();
	}, []);
	const skip = (event) => {
		event.preventDefault(); // the fragment is the route
		document.getElementById("heading")?.focus();
	};
	return html`
		<a class="skip" href="#heading" onClick=${skip}>Skip to the content</a>
		<header class="top">
			<a class="brand" href=${link("overview")} aria-hidden="true" tabindex="-1"><img src=${ICON} alt="" /> Findings</a>
			<nav aria-label="Views">
				${views.map(([name, { name: words, to }]) => html`
					<a href=${to ?? link(name)} aria-current=${name === view ? "page" : undefined}>${words}</a>`)}
			</nav>
			<${Account} help=${help} />
		</header>
		<main id="content"><${View} key=${`${view}/${id ?? ""}`} id=${id} query=${query} /></main>
		<${Outbox} />
		<${Toast} />
		<${Dialogs} />`;
}

function Account({ help }) {
	const { session } = usePage();
	const { key, me } = useStore(session);
	const { dataset } = document.documentElement; // `theme.js` reads the choice at the next start
	const [theme, setTheme] = useState(dataset.theme);
	const choose = (name) => {
		localStorage.setItem("findings:theme", (dataset.theme = name));
		setTheme(name);
	};
	const who = me.user ?? me.key;
	return html`
		<${Menu} id="account" label="Account: ${who}" name=${html`<span class="name"><${Text} of=${who} /></span>`}>
			<p class="me muted"><${Text} of=${who} /> · <${Text} of=${me.client} /> · ${me.level}</p>
			<div class="toggles" role="group" aria-label="Theme">
				${THEMES.map((name) => html`<button aria-pressed=${String(name === theme)} onClick=${() => choose(name)}>${capital(name)}</button>`)}
			</div>
			<button class="quiet" onClick=${help}>Keyboard shortcuts <kbd aria-hidden="true">?</kbd></button>
			<a href=${DESCRIPTION}>API reference</a>
			${key && html`<button class="quiet" onClick=${session.signOut}>Sign out</button>`}
		<//>`;
}

function Outbox() {
	const { unsent, sending, sendUnsent, discardFirst } = usePage().changes;
	const { length, 0: first } = useStore(unsent);
	const disabled = useStore(sending);
	return first && html`
		<section class="outbox" aria-label="Unsaved changes">
			<p role="alert">${count(length, "change")} not saved yet: ${first.what}${object(first.tasks)}.
				${first.refused ? html` <strong class="lines">${first.refused}</strong>` : " Retrying automatically; keep this tab open."}</p>
			<div class="buttons">
				${!first.refused && html`<button disabled=${disabled} onClick=${sendUnsent}>Retry</button>`}
				<button disabled=${disabled} onClick=${discardFirst}>Discard</button>
			</div>
		</section>`;
}

function Toast() {
	const { toast, say, sayError, undo } = usePage().changes;
	const said = useStore(toast);
	const { text, cancel } = said;
	useEffect(() => {
		const timer = text && !cancel && setTimeout(say, UNDO_TIME, "");
		return () => clearTimeout(timer);
	}, [said]);
	return html`
		<div class="toast ${text ? "" : "hidden"}">
			<p role="status">${text}</p>
			${cancel && html`<button onClick=${cancel}>Cancel</button>`}
			${said.undo && html`<button class="quiet" onClick=${() => undo().catch(sayError)}>Undo <kbd aria-hidden="true">u</kbd></button>`}
		</div>`;
}

history.scrollRestoration = "manual";
render(html`<${PageContext.Provider} value=${page}><${App} /><//>`, document.getElementById("app"));
