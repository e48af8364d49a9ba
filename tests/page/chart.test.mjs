// Tests of the numbers of the trend: `node --test tests/page`.

import assert from "node:assert/strict";
import { test } from "node:test";

import { changeOf, drawn, layout, ticks } from "../../findings_adapters/page/chart.js";

const day = (date, unfinished, created = 0, resolved = 0) => ({ date, unfinished, created, reopened: 0, resolved, dismissed: 0 });

test("the chart begins at the first day with data", () => {
	const days = [day("2026-01-01", 0), day("2026-01-02", 0), day("2026-01-03", 0, 2, 2), day("2026-01-04", 0)];
	assert.deepEqual(drawn(days).map(({ date }) => date), ["2026-01-03", "2026-01-04"]);
	assert.deepEqual(drawn(days.slice(0, 2)), [days[1]]);
	assert.equal(drawn([day("2026-01-01", 3), day("2026-01-02", 3), day("2026-01-03", 0)]).length, 2);
});

test("changes name their direction in words", () => {
	const texts = [[972, 0], [1, 1], [0, 1200]].map(([now, before]) => changeOf(now, before, "2026-10-28").text);
	assert.deepEqual(texts, ["up 972 since 28 Oct", "no change since 28 Oct", "down 1,200 since 28 Oct"]);
});

test("ticks are round, whole, few, and reach the most", () => {
	assert.deepEqual(ticks(0, 4), [0, 1]);
	assert.deepEqual(ticks(1, 4), [0, 1]);
	assert.deepEqual(ticks(5, 4), [0, 2, 4, 6]);
	assert.deepEqual(ticks(139, 4), [0, 50, 100, 150]);
	assert.deepEqual(ticks(1000, 4), [0, 500, 1000]);
	for (let most = 0; most < 250_000; most = Math.ceil(most * 1.1) + 1) {
		const found = ticks(most, 4);
		assert.ok(found.length <= 5 && found.at(-1) >= most && found.every(Number.isInteger), `${most}: ${found}`);
		assert.ok(found.at(-2) < Math.max(most, 1), `${most}: ${found}`);
	}
});

test("dates are as far apart as their texts need, up to today", () => {
	const days = Array.from({ length: 30 }, (_, index) => day(`2026-04-${String(index + 1).padStart(2, "0")}`, 1));
	const shown = (width) => layout(days, width).dates.map(({ text }) => text);
	assert.deepEqual(shown(390), ["2 Apr", "9 Apr", "16 Apr", "23 Apr", "30 Apr"]);
	assert.equal(shown(4000).length, 30);
	const [first, second] = layout(days, 390).dates;
	assert.ok(second.x - first.x >= 64);
});

test("the line goes through each day's number, and bars up and down from the middle", () => {
	const days = [day("2026-01-30", 0), day("2026-01-31", 5, 8, 3), day("2026-02-01", 4, 0, 1)];
	const { band, grid, dates, points, bars } = layout(days, 400);
	const heights = new Map(grid.slice(0, 4).map(({ value, y }) => [value, y]));
	assert.deepEqual([...heights.keys()], [0, 2, 4, 6]);
	assert.deepEqual(points.map(([x]) => Math.round((x - points[0][0]) / band)), [0, 1, 2]);
	assert.deepEqual([points[0][1], points[2][1]], [heights.get(0), heights.get(4)]);
	assert.ok(points[1][1] < heights.get(4) && points[1][1] > heights.get(6));
	assert.deepEqual(grid.slice(4).map(({ value }) => value), [0, 5, 10, 5, 10]);
	assert.deepEqual(bars.map(({ up, down }) => [up, down]), [[0, 0], [32, 12], [0, 4]]);
	assert.deepEqual(dates.map(({ text }) => text), ["30 Jan", "31 Jan", "1 Feb"]);
	assert.ok(points.every(([x]) => x > 0 && x < 400));
});

test("without any finding there are axes all the same, in however little room", () => {
	const { grid, points } = layout([day("2026-01-30", 0)], 80);
	assert.deepEqual(grid.map(({ value }) => value), [0, 1, 0, 1, 1]);
	assert.ok(points.flat().every(Number.isFinite));
});
