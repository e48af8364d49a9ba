// The service's API, and the key with which it is spoken to.

import { createStore } from "./lib.js";

const API = new URL("../api/v1/", import.meta.url);
const placeOf = (what) => `findings:${what}:${API.pathname}`; // a host may serve several
const KEY = placeOf("key");
export const UNSENT = placeOf("unsent");
export const DESCRIPTION = new URL("openapi.json", API).href;

/** The service refused: `status` and `code` of its answer, and in how many seconds to try again, if it said. */
export class Refusal extends Error {
	constructor(response, problem) {
		const problems = (problem.errors ?? []).map((each) => `${each.parameter ?? each.pointer}: ${each.detail}`);
		super([problem.detail ?? `The service answered ${response.status}.`, ...problems.slice(0, 5)].join("\n"));
		this.status = response.status;
		this.code = problem.code ?? "";
		this.retryAfter = Number(response.headers.get("Retry-After")) || 0;
	}
}

class Unreachable extends Error {
	constructor() {
		super("The service can't be reached.");
	}
}

/** Tell whether the same request may well succeed later. */
export const isPassing = (error) => error instanceof Unreachable || error.status > 501;

function readKept() {
	for (const storage of [sessionStorage, localStorage]) {
		try {
			const kept = JSON.parse(storage.getItem(KEY));
			if (typeof kept?.key === "string") return kept;
		} catch {
			// not ours
		}
	}
	return { key: "", full: false };
}

/** Who is signed in: `full` where the key may triage; `again` while a key that holds no more is asked for anew. */
export const session = createStore({ ...readKept(), again: null });

export async function signIn(key, remember) {
	remember ||= KEY in localStorage; // other tabs have it from there
	const full = await mayTriage(key);
	const [kept, other] = remember ? [localStorage, sessionStorage] : [sessionStorage, localStorage];
	kept.setItem(KEY, JSON.stringify({ key, full }));
	other.removeItem(KEY);
	const { again } = session.get();
	session.set({ key, full, again: null });
	again?.resolve();
}

/** Forget the key, and all that waits for another: whoever comes next begins anew. */
export function signOut() {
	for (const place of [KEY, UNSENT]) for (const storage of [sessionStorage, localStorage]) storage.removeItem(place);
	location.reload();
}

// another tab signed out
addEventListener("storage", ({ key, newValue }) => key === KEY && !newValue && !readKept().key && location.reload());

async function mayTriage(key) {
	const response = await send("GET", new URL("tasks?limit=1", API), key);
	return response.ok ? /PATCH/.test(response.headers.get("Allow")) : refuse(response);
}

function signedInAgain(key) {
	const present = session.get();
	if (present.key !== key) return Promise.resolve();
	if (!present.again) {
		const again = {};
		again.promise = new Promise((resolve) => (again.resolve = resolve));
		session.set({ ...present, again });
	}
	return session.get().again.promise;
}

async function send(method, url, key, { body, match, signal } = {}) {
	const sendable = key.replace(/[^ -~]/g, "?"); // with other signs it is no key, which the service says best
	const headers = { Authorization: `Bearer ${sendable}`, Accept: "application/json" };
	if (body !== undefined) headers["Content-Type"] = "application/json";
	if (match) headers["If-Match"] = match;
	try {
		return await fetch(url, { method, headers, body, signal, cache: "no-store", credentials: "omit" });
	} catch (error) {
		throw error.name === "AbortError" ? error : new Unreachable();
	}
}

async function refuse(response) {
	throw new Refusal(response, await response.json().catch(() => ({})));
}

/**
 * Send a request, again once a key that holds no more is replaced, and return {data, etag}: nothing where that has more
 * than `most` bytes. Empty values of `query` are left out.
 */
export async function request(method, path, { query = {}, body, match, signal, most } = {}) {
	const url = new URL(path, API);
	for (const [name, value] of Object.entries(query)) {
		if (value !== undefined && value !== null && String(value) !== "") url.searchParams.set(name, String(value));
	}
	for (;;) {
		const { key } = session.get();
		const text = body === undefined ? undefined : JSON.stringify(body);
		const response = await send(method, url, key, { body: text, match, signal });
		if (response.status === 401) await signedInAgain(key);
		else if (!response.ok) await refuse(response);
		else if (response.headers.get("Content-Length") > most) return void (await response.body.cancel());
		else return { data: await readJson(response), etag: response.headers.get("ETag") };
		signal?.throwIfAborted();
	}
}

async function readJson(response) {
	try {
		return await response.json();
	} catch (error) {
		throw error.name === "AbortError" ? error : new Unreachable();
	}
}

export async function get(path, query, signal) {
	return (await request("GET", path, { query, signal })).data;
}

/** Return the place at which a list goes on, out of its link, which a proxy may have made wrong. */
export function placeBehind(list) {
	return list.next ? new URL(list.next, API).searchParams.get("after") : null;
}

export const pathOf = (kind, id, more = "") => `${kind}/${encodeURIComponent(id)}${more}`;
