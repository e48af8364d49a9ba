// The trend by day: a line of unresolved findings above bars of new and closed ones.

import { html, useLayoutEffect, useRef, useState } from "./lib.js";
import { capital, number } from "./words.js";

const MOVES = ["created", "reopened", "resolved", "dismissed"];
const END = 158; // of the line, in pixels from the top
const MIDDLE = 232; // of the bars
const HEIGHT = 308;
const LEFT = 56; // space for numbers up to a million
const DATE = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });

const dateOf = (date) => DATE.format(new Date(date));
const opened = (day) => day.created + day.reopened;
const closed = (day) => day.resolved + day.dismissed;

/** Return the days to draw, from the first with data. The first of `days` is only what the others are compared with. */
export function drawn(days) {
	const first = days.findIndex((day, index) => index && day.unfinished + opened(day) + closed(day));
	return days.slice(Math.max(first, 1));
}

export function changeOf(now, before, since) {
	const by = now - before;
	const [sign, text] = by > 0 ? ["▲", `up ${number(by)}`] : by < 0 ? ["▼", `down ${number(-by)}`] : ["", "no change"];
	return { sign, text: `${text} since ${dateOf(since)}` };
}

/** Return round whole numbers from 0 to at least `most`, in at most `steps` steps. */
export function ticks(most, steps) {
	const least = Math.max(most / steps, 1);
	const power = 10 ** Math.floor(Math.log10(least));
	const step = power * [1, 2, 5, 10].find((each) => each * power >= least);
	return Array.from({ length: Math.ceil(Math.max(most, 1) / step) + 1 }, (_, index) => index * step);
}

export function layout(days, width) {
	const levels = ticks(Math.max(...days.map((day) => day.unfinished)), 4);
	const moves = ticks(Math.max(...days.map(opened), ...days.map(closed)), 2);
	const band = (width - LEFT - 22) / days.length; // half of the last date needs space at the right
	const every = Math.ceil(64 / band); // days between two dates; the last one is today
	const thick = Math.min(band * 0.7, 40);
	const x = (index) => LEFT + band * (index + 0.5);
	const y = (value) => END - (130 * value) / levels.at(-1);
	const tall = (value) => (40 * value) / moves.at(-1);
	return {
		band,
		thick,
		grid: [
			...levels.map((value) => ({ value, y: y(value) })),
			...moves.map((value) => ({ value, y: MIDDLE - tall(value) })),
			...moves.slice(1).map((value) => ({ value, y: MIDDLE + tall(value) })),
		],
		dates: days.map(({ date }, index) => ({ text: dateOf(date), x: x(index) })).filter((_, index) => (days.length - 1 - index) % every === 0),
		points: days.map((day, index) => [x(index), y(day.unfinished)]),
		bars: days.map((day, index) => ({ x: x(index) - thick / 2, up: tall(opened(day)), down: tall(closed(day)) })),
	};
}

/** Show the trend as a chart and a table. The chart is drawn again for each width, so that its text keeps its size. */
export function Trend({ days: asked }) {
	const box = useRef(null);
	const [width, setWidth] = useState(0);
	useLayoutEffect(() => {
		const watch = new ResizeObserver(([{ contentRect }]) => setWidth(Math.floor(contentRect.width)));
		watch.observe(box.current);
		return () => watch.disconnect();
	}, []);
	const days = drawn(asked);
	const now = days.at(-1).unfinished;
	const summary = `${number(now)} unresolved, ${changeOf(now, asked.at(-1 - days.length).unfinished, days[0].date).text}`;
	const sum = (name) => `${number(days.reduce((total, day) => total + day[name], 0))} ${name}`;
	return html`
		<figure>
			<figcaption>
				<strong>${summary}</strong>
				<span class="opened">New: ${sum("created")}, ${sum("reopened")}</span>
				<span class="closed">Closed: ${sum("resolved")}, ${sum("dismissed")}</span>
			</figcaption>
			<div class="chart" ref=${box}>${width > 0 && html`<${Drawing} ...${layout(days, width)} width=${width} label=${summary} />`}</div>
			<details><summary>Show as a table</summary>
				<div class="scroll" role="region" aria-label="Trend by day" tabindex="0"><table class="plain">
					<thead><tr>${["Day", "Unresolved", ...MOVES.map(capital)].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
					<tbody>${days.toReversed().map((day) => html`
						<tr><th scope="row">${day.date}</th>${["unfinished", ...MOVES].map((name) => html`<td class="number">${number(day[name])}</td>`)}</tr>`)}</tbody>
				</table></div></details>
		</figure>`;
}

const Drawing = ({ width, label, thick, grid, dates, points, bars }) => html`
	<svg width=${width} height=${HEIGHT} viewBox="0 0 ${width} ${HEIGHT}" role="img" aria-label=${label}>
		<text y="12">Unresolved at the end of the day (UTC)</text>
		<text y="178">New (up) and closed (down) per day</text>
		${grid.map(({ value, y }) => html`
			<path class="ground" d="M${LEFT} ${y}H${width}" /><text class="tick" x=${LEFT - 6} y=${y + 4}>${number(value)}</text>`)}
		<polyline class="line" points=${points.join(" ")} />
		<circle class="point" cx=${points.at(-1)[0]} cy=${points.at(-1)[1]} r="4" />
		<path class="opened" d=${bars.map(({ x, up }) => `M${x} ${MIDDLE}v${-up}h${thick}v${up}`).join("")} />
		<path class="closed" d=${bars.map(({ x, down }) => `M${x} ${MIDDLE}v${down}h${thick}v${-down}`).join("")} />
		${dates.map(({ text, x }) => html`<text class="date" x=${x} y="294">${text}</text>`)}
	</svg>`;
