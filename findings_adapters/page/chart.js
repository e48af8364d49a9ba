// The trend: a line of how many findings were unfinished, over bars of what came and went, day by day.

import { html, useLayoutEffect, useRef, useState } from "./lib.js";
import { capital, count, number } from "./words.js";

const MOVES = ["created", "reopened", "resolved", "dismissed"];
const COLUMNS = ["unfinished", ...MOVES];
const LINE = { top: 28, end: 178 }; // pixels from above
const BARS = { top: 216, middle: 256, end: 296 };
const HEIGHT = 340;
const LETTER = 7.5; // pixels that a digit takes
const DATE = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });

const came = (day) => day.created + day.reopened;
const went = (day) => day.resolved + day.dismissed;

/** Return round numbers from 0 to `most` or just beyond, in at most so many steps: what is counted has no halves. */
export function ticks(most, steps) {
	const least = Math.max(most / steps, 1);
	const power = 10 ** Math.floor(Math.log10(least));
	const step = power * [1, 2, 5, 10].find((each) => each * power >= least);
	return Array.from({ length: Math.ceil(Math.max(most, 1) / step) + 1 }, (_, index) => index * step);
}

/** Return where everything is drawn in so many pixels. */
export function layout(days, width) {
	const levels = ticks(Math.max(...days.map((day) => day.unfinished)), 4);
	const moves = ticks(Math.max(...days.map(came), ...days.map(went)), 2);
	const left = 12 + LETTER * Math.max(...[...levels, ...moves].map((value) => number(value).length));
	const band = (width - left - 22) / days.length; // half a date may stand behind the last
	const every = Math.ceil(64 / band); // days from date to date, the last of which is today's
	const x = (index) => left + band * (index + 0.5);
	const y = (value) => LINE.end - ((LINE.end - LINE.top) * value) / levels.at(-1);
	const tall = (value) => ((BARS.end - BARS.middle) * value) / moves.at(-1);
	return {
		left,
		band,
		grid: [
			...levels.map((value) => ({ value, y: y(value) })),
			...[...moves.slice(1).map((value) => -value), ...moves].map((value) => ({ value: Math.abs(value), y: BARS.middle - tall(value) })),
		],
		dates: days.map(({ date }, index) => ({ text: DATE.format(new Date(date)), x: x(index) }))
			.filter((_, index) => (days.length - 1 - index) % every === 0),
		points: days.map((day, index) => [x(index), y(day.unfinished)]),
		bars: days.map((day, index) => ({ day, x: x(index) - band / 2, up: tall(came(day)), down: tall(went(day)) })),
	};
}

/** Return how wide an element is, which `box` refers to. */
function useWidth() {
	const box = useRef(null);
	const [width, setWidth] = useState(0);
	useLayoutEffect(() => {
		const watch = new ResizeObserver(([{ contentRect }]) => setWidth(Math.floor(contentRect.width)));
		watch.observe(box.current);
		return () => watch.disconnect();
	}, []);
	return [box, width];
}

const tell = (day, names = MOVES) => names.map((name) => `${number(day[name])} ${name}`).join(", ");

/** It is drawn anew for each width, so that its text is as large as other text. */
export function Trend({ days }) {
	const [box, width] = useWidth();
	const sums = Object.fromEntries(MOVES.map((name) => [name, days.reduce((sum, day) => sum + day[name], 0)]));
	const now = `${number(days.at(-1).unfinished)} unfinished now, ${number(days[0].unfinished)} at the end of ${days[0].date}.`;
	return html`
		<figure role="figure" aria-label="Trend of ${count(days.length, "day")}">
			<div class="chart" ref=${box}>
				${width > 0 && html`<${Drawing} ...${layout(days, width)} width=${width} label="${now} ${tell(sums)}." />`}</div>
			<figcaption>
				<strong>${now}</strong>
				<span class="key came">Came: ${tell(sums, MOVES.slice(0, 2))}</span>
				<span class="key went">Went: ${tell(sums, MOVES.slice(2))}</span>
			</figcaption>
			<details><summary>As a table</summary><${DayTable} days=${days} /></details>
		</figure>`;
}

const Drawing = ({ width, label, left, band, grid, dates, points, bars }) => html`
	<svg width=${width} height=${HEIGHT} role="img" aria-label=${label}>
		<text y="12">Unfinished at the end of the day</text>
		<text y=${BARS.top - 14}>Came (up) and went (down) that day</text>
		${grid.map(({ value, y }) => html`
			<path class="ground" d="M${left} ${y}H${width}" /><text class="tick" x=${left - 6} y=${y + 4}>${number(value)}</text>`)}
		<polygon class="area" points="${points[0][0]},${LINE.end} ${points.join(" ")} ${points.at(-1)[0]},${LINE.end}" />
		<polyline class="line" points=${points.join(" ")} />
		${bars.map(({ day, x, up, down }) => html`
			<rect class="came" x=${x + band * 0.15} y=${BARS.middle - up} width=${band * 0.7} height=${up} />
			<rect class="went" x=${x + band * 0.15} y=${BARS.middle} width=${band * 0.7} height=${down} />
			<rect class="day" x=${x} width=${band} height=${BARS.end}><title>${day.date}: ${tell(day, COLUMNS)}</title></rect>`)}
		${dates.map(({ text, x }) => html`<text class="date" x=${x} y=${BARS.end + 18}>${text}</text>`)}
		<text class="date" x=${(left + width) / 2} y=${HEIGHT - 6}>Day (UTC)</text>
	</svg>`;

const DayTable = ({ days }) => html`
	<div class="scroll" role="region" aria-label="Trend by day" tabindex="0"><table class="plain">
		<caption class="hidden">Unfinished findings at the end of each day, and what came and went</caption>
		<thead><tr>${["day", ...COLUMNS].map((name) => html`<th scope="col">${capital(name)}</th>`)}</tr></thead>
		<tbody>
			${days.toReversed().map((day) => html`
				<tr><th scope="row">${day.date}</th>${COLUMNS.map((name) => html`<td class="number">${number(day[name])}</td>`)}</tr>`)}
		</tbody>
	</table></div>`;
