// What people and agents wrote, each line in its own direction. Of Markdown, headings, strong words, code and links
// are shown as such; the rest reads well as it is.

import { html } from "./lib.js";
import { webAddress } from "./words.js";

const MOST_PIECES = 600; // of a text, for the browser's sake
const MARKS = new RegExp([
	/(?<=^|\n)```[^\n]*\n(?<block>[^]*?)\n```[^\n]*/, // bounded each, so that no text takes long
	/`(?<code>[^`\n]{1,500})`/,
	/\*\*(?<strong>[^*\n]{1,500})\*\*/,
	/(?<=^|\n)#{1,6} (?<heading>[^\n]{1,500})/,
	/\[(?<words>[^\][\n]{1,500})\]\((?<target>https?:\/\/[^\s()<>"`\p{Cc}\p{Bidi_C}]{1,2000})\)/u,
	/\b(?<url>https?:\/\/[^\s<>"`\p{Cc}\p{Bidi_C}]+)/u,
].map(({ source }) => source).join("|"), "giu");

/** Return a URL's length without what ends its sentence, or closes a bracket opened before. */
function lengthOf(url) {
	let end = url.length;
	const hasOpen = url.includes("(");
	while (end && (".,;:!?'*_|]}".includes(url[end - 1]) || (url[end - 1] === ")" && !hasOpen))) end -= 1;
	return end;
}

/** Return a text's pieces: texts, and {kind, text, href?} of a kind in `DRAWN`. */
export function piecesOf(text) {
	const pieces = [];
	let done = 0;
	for (const { 0: found, index, groups } of text.matchAll(MARKS)) {
		if (pieces.length >= MOST_PIECES) break;
		const { words, target, url, ...marked } = groups;
		const [kind] = Object.keys(marked).filter((name) => marked[name] !== undefined);
		const address = target ?? url?.slice(0, lengthOf(url));
		const href = kind ? undefined : webAddress(address)?.href;
		if (!kind && !href) continue;
		pieces.push(text.slice(done, index), kind ? { kind, text: marked[kind] } : { kind: "link", text: words ? `${words} (${new URL(href).host})` : address, href });
		done = index + (url ? address.length : found.length);
	}
	return [...pieces, text.slice(done)].filter((piece) => piece !== "");
}

const strong = ({ text }) => html`<strong><bdi>${text}</bdi></strong>`;
const DRAWN = {
	block: ({ text }) => html`<code class="block">${text}</code>`,
	code: ({ text }) => html`<code><bdi>${text}</bdi></code>`,
	strong,
	heading: strong,
	link: ({ text, href }) => html`
		<a href=${href} title=${href} target="_blank" rel="noopener noreferrer nofollow"><bdi>${text}</bdi></a>`,
};

/** Show strangers' text as a block: it turns nothing around outside. */
export const Prose = ({ of }) => html`
	<div class="prose" dir="auto">${piecesOf(of).map((piece) => (piece.kind ? DRAWN[piece.kind](piece) : piece))}</div>`;
