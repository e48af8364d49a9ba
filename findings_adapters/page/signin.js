// Signing in with a key: at first, and over what is open once a key holds no more.

import { html, usePage } from "./lib.js";
import { Dialog, Form } from "./parts.js";

function KeyForm({ other }) {
	const { session } = usePage();
	const signIn = ({ elements: { key, remember } }) => session.signIn(key.value.trim(), remember.checked);
	return html`
		<${Form} class="signin" action="Sign in" onSubmit=${signIn} other=${other}>
			<label class="field"><span>API key</span>
				<input name="key" type="password" required autofocus autocomplete="off" spellcheck=${false} placeholder="fts_…" /></label>
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

/** Ask for a key over what is open; what failed for want of one is sent again. */
export function SignInAgain() {
	const { session } = usePage();
	return html`
		<${Dialog} title="Sign in again">
			<p>The key is not accepted any more: it has expired, or was revoked. Nothing that you typed is lost.</p>
			<${KeyForm} other=${html`<button type="button" onClick=${session.signOut}>Sign out</button>`} />
		<//>`;
}
