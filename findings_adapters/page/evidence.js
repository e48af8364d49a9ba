// The evidence of a finding, which is untrusted.

import { html, useState } from "./lib.js";
import { Address, Copy, Text } from "./parts.js";
import { placeOf } from "./source.js";
import { number, webAddress } from "./words.js";

const MOST_LINES = 200; // at first
const PICTURE_TYPE = /screen|image|picture|photo/i;
const PICTURE_FILE = /\.(?:png|jpe?g|gif|webp|avif|svg)$/i;

/** Show text with numbered lines, from `first` on. One of several may be marked. */
export function Code({ text, first = 1, marked, label }) {
	const [whole, setWhole] = useState(false);
	const lines = text.split("\n");
	if (lines.length > 1 && lines.at(-1) === "") lines.pop();
	const mark = lines.length > 1 ? marked - first : -1;
	const shown = whole || mark >= MOST_LINES ? lines : lines.slice(0, MOST_LINES);
	return html`
		<div class="code" role="group" aria-label=${label}>
			<pre><code>${shown.map((line, index) => html`<span class="line ${index === mark ? "marked" : ""}">
				<span class="no" aria-hidden="true" data-no=${first + index} />${index === mark && html`<span class="hidden">Here: </span>`}<bdi>${line}</bdi></span>`)}</code></pre>
			<div class="buttons">
				${lines.length > shown.length && html`
					<button class="quiet" onClick=${() => setWhole(true)}>Show all ${number(lines.length)} lines</button>`}
				<${Copy} text=${text} />
			</div>
		</div>`;
}

/** Show a picture: another host's only on request, because that host hears of it. */
function Picture({ url, label }) {
	const remote = !url.startsWith("data:");
	const [state, setState] = useState(remote ? "hidden" : "shown");
	if (state === "hidden") {
		return html`<button onClick=${() => setState("shown")}>Show picture from <bdi>${new URL(url).host}</bdi></button>`;
	}
	if (state === "broken") return html`<p class="muted">This picture can't be shown.</p>`;
	return html`<img src=${url} alt=${label || "Picture without a description"} onError=${() => setState("broken")} />`;
}

function Item({ item, location }) {
	const { type, label, url, content } = item;
	const [begin, named] = [placeOf(label), placeOf(location)]; // a label may be one like `src/app.py:12`
	const marked = begin.line && begin.path === named.path ? named.line : null;
	const isData = /^data:/i.test(url ?? "");
	const address = webAddress(url ?? "");
	const isPicture = isData || (address && (PICTURE_TYPE.test(type) || PICTURE_FILE.test(address.pathname)));
	return html`
		<li>
			<div><span class="kind"><${Text} of=${type} /></span> ${label && html`<strong><${Text} of=${label} /></strong>`}</div>
			${url && !isData && html`<p><${Address} url=${url} /></p>`}
			${isPicture && html`<${Picture} url=${isData ? url : address.href} label=${label} />`}
			${content && html`<${Code} text=${content} first=${begin.line ?? 1} marked=${marked} label=${label || type} />`}
		</li>`;
}

export const Evidence = ({ items, location }) => html`
	<ol class="evidence">${items.map((item) => html`<${Item} item=${item} location=${location} />`)}</ol>`;
