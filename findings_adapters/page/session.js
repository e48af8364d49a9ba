// The API key and its owner. Behind a proxy that signs users in, the key is "".

import { API, heedRefusal, send } from "./api.js";
import { createStore, readKept } from "./lib.js";

const NAME = `findings:key:${API.pathname}`; // a host may serve several
const NOBODY = { key: "", me: null };
const OFFERED = /^#key=(.+)/; // in the address that the service prints at its first start

/** Return the stored key and its owner, if they have the expected form. */
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
 * Create the store {key, me, asking, again}. `me` is the response of `GET /me`. `asking` is true while a proxy or another
 * tab may sign the user in. `again` is a promise of a new sign-in. Tabs without a key get it from other tabs, and do not
 * store it.
 */
export function createSession() {
	const [, offered] = OFFERED.exec(location.hash) ?? [];
	const store = createStore({ ...readSignedIn(), asking: false, again: null });
	const channel = new BroadcastChannel(NAME);

	function take(key, me) {
		const { again } = store.get();
		store.set({ key, me, asking: false, again: null });
		again?.resolve();
	}

	/** Use a key and share it with other tabs. */
	function enter(key, me) {
		take(key, me);
		channel.postMessage({ key, me });
	}

	/** Delete all stored data, and reload. */
	function forget() {
		for (const storage of [sessionStorage, localStorage]) {
			for (const name of Object.keys(storage)) {
				if (name.startsWith("findings:") && name.endsWith(`:${API.pathname}`)) storage.removeItem(name);
			}
		}
		store.set({ ...NOBODY, asking: false, again: null }); // if the user cancels the reload, other tabs cannot get the key
		location.reload();
	}

	channel.onmessage = ({ data }) => {
		const { key, me, again } = store.get();
		if (data.ended) forget();
		else if (data.wanted && key && !again) channel.postMessage({ key, me });
		else if (data.me && !key && (again || !me)) take(data.key, data.me); // never replaces another user
	};

	async function signIn(key, kept) {
		const me = await readMe(key);
		kept.setItem(NAME, JSON.stringify({ key, me }));
		enter(key, me);
	}

	addEventListener("hashchange", () => OFFERED.test(location.hash) && location.reload());
	const ask = (asking) => store.set({ ...store.get(), asking });
	if (offered) {
		history.replaceState(null, "", location.pathname);
		ask(true);
		const { key } = store.get();
		readMe(key)
			.then((me) => enter(key, me), () => signIn(offered, sessionStorage)) // a link does not replace a valid session
			.catch((error) => store.set({ ...NOBODY, asking: false, again: null, error }));
	} else if (!store.get().key) {
		ask(true);
		channel.postMessage({ wanted: true });
		readMe("").then((me) => store.get().me ?? enter("", me), () => ask(false));
	}

	return {
		...store,

		async signIn(key, remember) {
			const storages = [localStorage, sessionStorage];
			const [kept, other] = remember || NAME in localStorage ? storages : storages.reverse();
			await signIn(key, kept);
			other.removeItem(NAME);
		},

		/** Reload the key's owner and level. */
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

		/** Return a promise of a sign-in that replaces this key, or null if it was replaced already. */
		replaced(key) {
			const present = store.get();
			if (present.key !== key) return null;
			if (!present.again) store.set({ ...present, again: Promise.withResolvers() });
			return store.get().again.promise;
		},
	};
}

/** Return whether a key may triage. */
export const mayTriage = ({ me }) => ["triage", "full"].includes(me?.level);

/** Return whether a key may delete data and manage webhooks. */
export const mayDelete = ({ me }) => me?.level === "full";
