// Who is signed in: the key, and what the service says of it. Behind a proxy that signs people in there is none.

import { API, heedRefusal, send } from "./api.js";
import { createStore, readKept } from "./lib.js";

const NAME = `findings:key:${API.pathname}`; // a host may serve several
const NOBODY = { key: "", me: null };
const KEY_IN_ADDRESS = /^#key=(.+)$/; // as the first start prints it

/** Return the key in the address, or "", and remove it from the address and from the history. */
function takeKeyFromAddress() {
	const [, key = ""] = KEY_IN_ADDRESS.exec(location.hash) ?? [];
	if (key) history.replaceState(null, "", location.pathname);
	return key;
}

/** Read a kept key: what is kept may not be ours. */
function readSignedIn() {
	const kept = [sessionStorage, localStorage].map((storage) => readKept(storage, NAME));
	const { key, me } = kept.find((each) => typeof each?.key === "string" && each.me?.level) ?? NOBODY;
	return { key, me };
}

async function readMe(key) {
	const response = await send("GET", "me", key);
	await heedRefusal(response);
	return response.json();
}

/**
 * Return the store {key, me: what `GET /me` says, asking: whether a proxy or another tab may sign in, again: a promise
 * while somebody is to sign in again}. A key is kept for the tab, or on request in the browser. Tabs hand theirs to those
 * without, which keep it nowhere.
 */
export function createSession() {
	const offered = takeKeyFromAddress();
	const store = createStore({ ...(offered ? NOBODY : readSignedIn()), asking: false, again: null });
	const channel = new BroadcastChannel(NAME);

	function take(key, me) {
		const { again } = store.get();
		store.set({ key, me, asking: false, again: null });
		again?.resolve();
	}

	/** Take what came from nowhere else, and hand it over. */
	function enter(key, me) {
		take(key, me);
		channel.postMessage({ key, me });
	}

	/** Forget all that is kept: whoever comes next begins anew. */
	function forget() {
		for (const storage of [sessionStorage, localStorage]) {
			for (const name of Object.keys(storage)) {
				if (name.startsWith("findings:") && name.endsWith(`:${API.pathname}`)) storage.removeItem(name);
			}
		}
		store.set({ ...NOBODY, asking: false, again: null }); // handed to no tab any more, even if the reload is stopped
		location.reload();
	}

	channel.onmessage = ({ data }) => {
		const { key, me, again } = store.get();
		if (data.ended) forget();
		else if (data.wanted && key && !again) channel.postMessage({ key, me });
		else if (data.me && !key && (again || !me)) take(data.key, data.me); // never in another's place
	};

	/** Sign in, and keep the key for the tab or, with `remember`, in the browser. */
	async function signIn(key, remember) {
		const me = await readMe(key);
		const [kept, other] = remember ? [localStorage, sessionStorage] : [sessionStorage, localStorage];
		kept.setItem(NAME, JSON.stringify({ key, me }));
		if (remember !== null) other.removeItem(NAME);
		enter(key, me);
	}

	addEventListener("hashchange", () => KEY_IN_ADDRESS.test(location.hash) && location.reload());
	if (offered) {
		store.set({ ...store.get(), asking: true });
		signIn(offered, null).catch(() => store.set({ ...store.get(), asking: false }));
	} else if (!store.get().key) {
		store.set({ ...store.get(), asking: true });
		channel.postMessage({ wanted: true });
		readMe("").then((me) => store.get().me ?? enter("", me), () => store.set({ ...store.get(), asking: false }));
	}

	return {
		...store,

		signIn: (key, remember) => signIn(key, remember || NAME in localStorage),

		/** Ask what the key may do: that may have changed since it was kept. */
		async refresh() {
			const { key } = store.get();
			const me = await readMe(key).catch(() => null);
			if (me && store.get().key === key) store.set({ ...store.get(), me });
		},

		/** Sign out in all tabs. */
		signOut() {
			channel.postMessage({ ended: true });
			forget();
		},

		/** Wait until somebody has signed in in place of this key, or where there was none. */
		replaced(key) {
			const present = store.get();
			if (present.key !== key) return null;
			if (!present.again) store.set({ ...present, again: Promise.withResolvers() });
			return store.get().again.promise;
		},
	};
}

/** Tell whether a key may triage. */
export const mayTriage = ({ me }) => me?.level === "full";
