// Which findings a run's baseline has reported too.

import assert from "node:assert/strict";
import test from "node:test";

import { knownOf } from "../../findings_adapters/page/run.js";

const tasks = (...ids) => ids.map((id) => ({ id }));
const ids = (found) => found.map(({ id }) => id);

test("what a gate has judged and does not list as new is known", () => {
	assert.deepEqual(ids(knownOf(tasks("a", "b", "c"), { offenders: tasks("b"), offendersTotal: 1 })), ["a", "c"]);
});

test("behind the last that a gate lists nothing is told", () => {
	assert.deepEqual(ids(knownOf(tasks("a", "b", "c", "d"), { offenders: tasks("a", "c"), offendersTotal: 3 })), ["b"]);
});

test("at most fifty are told", () => {
	const many = tasks(...Array(80).keys());
	assert.equal(knownOf(many, { offenders: [], offendersTotal: 0 }).length, 50);
});
