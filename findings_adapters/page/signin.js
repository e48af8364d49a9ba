// Sign-in with an API key, and again after a key or a proxy's session has expired.

import { html, usePage, useStore } from "./lib.js";
import { Dialog, Form, Input } from "./parts.js";

function KeyForm({ other }) {
	const { session } = usePage();
	const { error } = useStore(session);
	const signIn = ({ elements: { key, remember } }) => session.signIn(key.value.trim(), remember.checked);
	return html`
		<${Form} class="signin" action="Sign in" onSubmit=${signIn} other=${other} failure=${error}>
			<${Input} label="API key" name="key" type="password" required autofocus spellcheck=${false} placeholder="fts_…" />
			<label class="check"><input name="remember" type="checkbox" /> Remember it in this browser</label>
		<//>`;
}

export const SignIn = () => html`
	<main class="front">
		<h1>Findings</h1>
		<p>What agents and scanners found, and what people made of it.</p>
		<${KeyForm} />
		<p class="muted">Keys are made on the machine of the service:</p>
		<pre class="sample">findings-service keys create NAME --level full</pre>
	</main>`;

/** Ask to sign in again; then failed requests are sent again. */
export function SignInAgain() {
	const { session } = usePage();
	const { key } = useStore(session);
	return html`
		<${Dialog} title="Sign in again">
			${key ? html`
				<p>The key is not accepted any more: it has expired, or was revoked. Nothing that you typed is lost.</p>
				<${KeyForm} other=${html`<button type="button" onClick=${session.signOut}>Sign out</button>`} />` : html`
				<p>You are not signed in any more. Nothing that you typed is lost: <a href=${location.href} target="_blank">sign in
					in another tab</a>, and this one goes on.</p>`}
		<//>`;
}
