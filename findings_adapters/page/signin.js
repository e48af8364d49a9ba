// Signing in with a key: at the beginning, and over whatever is open once a key holds no more.

import { html, usePage, useState } from "./lib.js";
import { Dialog, Failed } from "./parts.js";

function Form({ children }) {
	const { session } = usePage();
	const [{ error, busy }, setState] = useState({});
	const submit = async (event) => {
		event.preventDefault();
		const { key, remember } = event.target.elements;
		setState({ busy: true });
		try {
			await session.signIn(key.value.trim(), remember.checked);
		} catch (refused) {
			setState({ error: refused });
		}
	};
	return html`
		<form class="signin" onSubmit=${submit}>
			<label class="field"><span>API key</span>
				<input name="key" type="password" required autofocus autocomplete="off" spellcheck=${false} placeholder="fts_…" /></label>
			<label class="check"><input name="remember" type="checkbox" /> Remember it in this browser</label>
			${error && html`<${Failed} error=${error} />`}
			<div class="buttons end">${children}<button class="primary" disabled=${busy}>Sign in</button></div>
		</form>`;
}

export const SignIn = () => html`
	<main class="front">
		<h1>Findings</h1>
		<p>What agents and scanners found, and what people made of it.</p>
		<${Form} />
		<p class="muted">Keys are made on the machine of the service:</p>
		<pre class="sample">findings-service keys create NAME --level full</pre>
	</main>`;

/** What is open stays as it is below this; what failed for want of a key is sent again afterwards. */
export function SignInAgain() {
	const { session } = usePage();
	return html`
		<${Dialog} title="Sign in again">
			<p>The key is not accepted any more: it has expired, or was revoked. Nothing that you typed is lost.</p>
			<${Form}><button type="button" onClick=${session.signOut}>Sign out</button><//>
		<//>`;
}
