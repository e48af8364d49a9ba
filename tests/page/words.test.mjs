// Names of values, and formats of numbers and dates.

import assert from "node:assert/strict";
import test from "node:test";

import { age, clock, count, cut, dateValue, day, decisionName, number, webAddress } from "../../findings_adapters/page/words.js";

const NOW = Date.parse("2026-03-01T12:00:00Z");
const ageOf = (seconds) => age(new Date(NOW - seconds * 1000).toISOString(), NOW);

for (const [seconds, told] of [
	[0, "now"],
	[59.999, "now"],
	[60, "1 min"],
	[3_599, "59 min"],
	[3_600, "1 h"],
	[86_399, "23 h"],
	[86_400, "1 d"],
	[30 * 86_400, "30 d"],
	[2_629_800, "1 mo"], // the twelfth of a year
	[31_557_599, "11 mo"],
	[31_557_600, "1 y"], // 365.25 days
]) {
	test(`${seconds} seconds are shown as ${told}`, () => assert.equal(ageOf(seconds), told));
}

test("a time in the future is shown as now", () => assert.equal(ageOf(-90), "now"));

test("an age does not depend on the time zone of its timestamp", () =>
	assert.equal(age("2026-03-01T13:30:00+02:00", NOW), "30 min"));

test("only one is singular", () => {
	assert.deepEqual(
		[0, 1, 2].map((value) => count(value, "finding")),
		["0 findings", "1 finding", "2 findings"],
	);
	assert.equal(count(2, "entry", "entries"), "2 entries");
});

test("a date names its year only if it is another one, and a time of today no date", () => {
	const now = new Date();
	const later = new Date(now.getFullYear() + 1, 11, 1, 14, 5);
	assert.equal(day(later), `1 Dec ${later.getFullYear()}`);
	assert.equal(clock(later), `1 Dec ${later.getFullYear()}, 14:05`);
	now.setHours(14, 5);
	assert.deepEqual([clock(now), dateValue(later)], ["14:05", `${later.getFullYear()}-12-01`]);
	assert.doesNotMatch(day(now), /\d{4}/);
	assert.equal(decisionName({ status: "dismissed", reason: "accepted_risk", until: later }), `Dismiss as accepted risk until 1 Dec ${later.getFullYear()}`);
});

test("thousands are separated", () => assert.equal(number(1234567), "1,234,567"));

test("a text that fits is not cut", () => {
	assert.equal(cut("abcd", 4), "abcd");
	assert.equal(cut("abcde", 4), "abc…");
});

test("characters that change the direction of text are removed before cutting", () =>
	assert.equal(cut("\u202eab\u2066cd\u2069\u200f", 4), "abcd"));

test("right-to-left text is isolated", () => {
	assert.equal(cut("שלום", 9), "\u2068שלום\u2069");
	assert.equal(cut("abcשלום", 4), "abc…"); // what was cut off turns nothing
});

test("only a complete web address is a link", () => {
	assert.equal(webAddress("HTTPS://example.com/a?b#c").href, "https://example.com/a?b#c");
	for (const text of ["javascript:alert(1)", "ftp://example.com/", "see https://example.com", "https://a b", "https://"]) {
		assert.equal(webAddress(text), null, text);
	}
});
