// The trend by day: a line of unfinished findings over bars of changes.

import { html, useLayoutEffect, useRef, useState } from "./lib.js";
import { capital, number } from "./words.js";

const COLUMNS = ["unfinished", "created", "reopened", "resolved", "dismissed"];
const LINE = { top: 28, end: 178 }; // pixels from above
const BARS = { top: 216, middle: 256, end: 296 };
const HEIGHT = 340;
const LEFT = 56; // room for numbers up to a million
const DATE = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });

const came = (day) => day.created + day.reopened;
const went = (day) => day.resolved + day.dismissed;

/** Return round numbers from 0 to at least `most`, in at most so many steps: counts have no halves. */
export function ticks(most, steps) {
	const least = Math.max(most / steps, 1);
	const power = 10 ** Math.floor(Math.log10(least));
	const step = power * [1, 2, 5, 10].find((each) => each * power >= least);
	return Array.from({ length: Math.ceil(Math.max(most, 1) / step) + 1 }, (_, index) => index * step);
}

/** Return where everything is drawn in `width` pixels. */
export function layout(days, width) {
	const levels = ticks(Math.max(...days.map((day) => day.unfinished)), 4);
	const moves = ticks(Math.max(...days.map(came), ...days.map(went)), 2);
	const band = (width - LEFT - 22) / days.length; // half a date may stand behind the last
	const every = Math.ceil(64 / band); // days from date to date; the last is today
	const x = (index) => LEFT + band * (index + 0.5);
	const y = (value) => LINE.end - ((LINE.end - LINE.top) * value) / levels.at(-1);
	const tall = (value) => ((BARS.end - BARS.middle) * value) / moves.at(-1);
	return {
		band,
		grid: [
			...levels.map((value) => ({ value, y: y(value) })),
			...moves.map((value) => ({ value, y: BARS.middle - tall(value) })),
			...moves.slice(1).map((value) => ({ value, y: BARS.middle + tall(value) })),
		],
		dates: days.map(({ date }, index) => ({ text: DATE.format(new Date(date)), x: x(index) }))
			.filter((_, index) => (days.length - 1 - index) % every === 0),
		points: days.map((day, index) => [x(index), y(day.unfinished)]),
		bars: days.map((day, index) => ({ x: x(index) - band * 0.35, up: tall(came(day)), down: tall(went(day)) })),
	};
}

/** Draw anew for each width, so that text keeps its size. */
export function Trend({ days }) {
	const box = useRef(null);
	const [width, setWidth] = useState(0);
	useLayoutEffect(() => {
		const watch = new ResizeObserver(([{ contentRect }]) => setWidth(Math.floor(contentRect.width)));
		watch.observe(box.current);
		return () => watch.disconnect();
	}, []);
	const now = `${number(days.at(-1).unfinished)} unfinished now, ${number(days[0].unfinished)} at the end of ${days[0].date}.`;
	const sum = (name) => `${number(days.reduce((total, day) => total + day[name], 0))} ${name}`;
	return html`
		<figure>
			<div class="chart" ref=${box}>${width > 0 && html`<${Drawing} ...${layout(days, width)} width=${width} label=${now} />`}</div>
			<figcaption>
				<strong>${now}</strong>
				<span class="came">Came: ${sum("created")}, ${sum("reopened")}</span>
				<span class="went">Went: ${sum("resolved")}, ${sum("dismissed")}</span>
			</figcaption>
			<details><summary>As a table</summary><${DayTable} days=${days} /></details>
		</figure>`;
}

const Drawing = ({ width, label, band, grid, dates, points, bars }) => html`
	<svg width=${width} height=${HEIGHT} role="img" aria-label=${label}>
		<text y="12">Unfinished at the end of the day</text>
		<text y=${BARS.top - 14}>Came (up) and went (down) that day</text>
		${grid.map(({ value, y }) => html`
			<path class="ground" d="M${LEFT} ${y}H${width}" /><text class="tick" x=${LEFT - 6} y=${y + 4}>${number(value)}</text>`)}
		<polyline class="line" points=${points.join(" ")} />
		${bars.map(({ x, up, down }) => html`
			<rect class="came" x=${x} y=${BARS.middle - up} width=${band * 0.7} height=${up} />
			<rect class="went" x=${x} y=${BARS.middle} width=${band * 0.7} height=${down} />`)}
		${dates.map(({ text, x }) => html`<text class="date" x=${x} y=${BARS.end + 18}>${text}</text>`)}
		<text class="date" x=${(LEFT + width) / 2} y=${HEIGHT - 6}>Day (UTC)</text>
	</svg>`;

const DayTable = ({ days }) => html`
	<div class="scroll" role="region" aria-label="Trend by day" tabindex="0"><table class="plain">
		<thead><tr>${["day", ...COLUMNS].map((name) => html`<th scope="col">${capital(name)}</th>`)}</tr></thead>
		<tbody>
			${days.toReversed().map((day) => html`
				<tr><th scope="row">${day.date}</th>${COLUMNS.map((name) => html`<td class="number">${number(day[name])}</td>`)}</tr>`)}
		</tbody>
	</table></div>`;
