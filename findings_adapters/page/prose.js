// What people and agents wrote, as they wrote it: their lines, each in its own direction, and links to the web.

import { html } from "./lib.js";
import { webAddress } from "./words.js";

const MOST_LINKS = 300; // in a text, for the browser's sake
const URLS = /\bhttps?:\/\/[^\s<>"`\p{Cc}\p{Bidi_C}]+/giu;

/** Return how long a URL in a sentence is: without what ends the sentence, or closes a bracket that was open before. */
function lengthOf(url) {
	let end = url.length;
	const hasOpen = url.includes("(");
	while (end && (".,;:!?'*_|]}".includes(url[end - 1]) || (url[end - 1] === ")" && !hasOpen))) end -= 1;
	return end;
}

/** Return the pieces of a text: texts, and links as {url, href}. Together they are the text. */
export function piecesOf(text) {
	const pieces = [];
	let done = 0;
	for (const { 0: found, index } of text.matchAll(URLS)) {
		if (pieces.length >= 2 * MOST_LINKS) break;
		const url = found.slice(0, lengthOf(found));
		const address = webAddress(url);
		if (!address) continue;
		pieces.push(text.slice(done, index), { url, href: address.href });
		done = index + url.length;
	}
	return [...pieces, text.slice(done)].filter((piece) => piece !== "");
}

/** A text of strangers as a block of its own, which nothing in it turns around what stands outside of. */
export const Prose = ({ of }) => html`
	<div class="prose" dir="auto">${piecesOf(of).map((piece) => (piece.href
		? html`<a href=${piece.href} target="_blank" rel="noopener noreferrer nofollow"><bdi>${piece.url}</bdi></a>`
		: piece))}</div>`;
