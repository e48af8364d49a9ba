// Sign-in with an API key, and again after a key or a proxy's session has expired.

import { html, usePage, useStore } from "./lib.js";
import { Dialog, Form, Input } from "./parts.js";

export const ICON = new URL("icon.svg", import.meta.url).href;

function KeyForm({ other }) {
	const { session } = usePage();
	const { error } = useStore(session);
	const signIn = ({ elements: { key, remember } }) => session.signIn(key.value.trim(), remember.checked);
	return html`
		<${Form} class="signin" action="Sign in" wrong="Sign-in failed" onSubmit=${signIn} other=${other} failure=${error}>
			<${Input} label="API key" name="key" type="password" required pattern=".*\\S.*" autofocus spellcheck=${false} placeholder="fts_…" />
			<label class="check"><input name="remember" type="checkbox" /> Keep me signed in</label>
		<//>`;
}

export const SignIn = () => html`
	<main class="front">
		<div class="card">
			<h1 class="brand"><img src=${ICON} alt="" /> Findings</h1>
			<p class="muted">Findings from your scanners and agents, triaged by your team.</p>
			<${KeyForm} />
		</div>
		<p class="muted">Create a key on the server:</p>
		<pre class="sample">findings-service keys create NAME --level full</pre>
	</main>`;

export function SignInAgain() {
	const { session } = usePage();
	const { key } = useStore(session);
	return html`
		<${Dialog} title="Sign in again">
			${key ? html`
				<p>Your key expired or was revoked. Sign in to continue; nothing you typed is lost.</p>
				<${KeyForm} other=${html`<button type="button" onClick=${session.signOut}>Sign out</button>`} />` : html`
				<p>You are signed out. Nothing you typed is lost: <a href=${location.href} target="_blank">sign in in another tab</a>,
					and this one continues.</p>`}
		<//>`;
}
