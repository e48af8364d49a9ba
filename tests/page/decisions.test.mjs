import assert from "node:assert/strict";
import { test } from "node:test";

import { acceptances, canUndo, decided, differs, groupProposals, isAlready, keepable, latestVerifications, wayBack } from "../../findings_adapters/page/decisions.js";

const UNSET = { reason: null, assignee: null, reportedSeverity: null, until: null, duplicateOf: null, proposal: null };
const task = (fields = {}) => ({ id: "1", etag: "a", status: "open", severity: "low", title: "T", ...UNSET, ...fields });
const proposal = (fields = {}) => ({ status: "dismissed", reason: "wont_fix", comment: "C", duplicateOf: null, until: null, by: "agent", ...fields });

test("a decision changes only its fields, and a new status clears the reason", () => {
	const before = task({ status: "dismissed", reason: "wont_fix", assignee: "Ada" });
	assert.deepEqual(decided(before, { comment: "x" }, "b"), { ...before, etag: "b" });
	assert.deepEqual(decided(before, { status: "open" }, "b"), { ...before, status: "open", reason: null, etag: "b" });
	assert.deepEqual(decided(before, { status: "dismissed", assignee: "" }, "b"), { ...before, assignee: null, etag: "b" });
	assert.equal(decided(before, { status: "resolved", reason: "fixed" }, "b").reason, "fixed");
});

test("a decision keeps what it leaves, and a new status ends the rest", () => {
	const before = task({ status: "dismissed", reason: "duplicate", duplicateOf: "2", until: "2026", severity: "high", reportedSeverity: "low" });
	assert.deepEqual(decided(before, { reason: "duplicate", until: "" }, "b"), { ...before, until: null, etag: "b" });
	assert.deepEqual(decided(before, { severity: "reported" }, "b"), { ...before, severity: "low", reportedSeverity: null, etag: "b" });
	assert.equal(decided(before, { reason: "wont_fix" }, "b").duplicateOf, null);
	assert.deepEqual(decided(before, { status: "open" }, "b"), task({ severity: "high", reportedSeverity: "low", etag: "b" }));
	const open = task({ proposal: proposal() });
	assert.deepEqual([decided(open, { severity: "high" }, "b"), decided(open, { status: "resolved" }, "b")], [
		{ ...open, severity: "high", reportedSeverity: "low", etag: "b" },
		task({ status: "resolved", etag: "b" }),
	]);
});

test("a repeated report is not a different state", () => {
	assert.ok(!differs(task(), task({ etag: "b", timesSeen: 7, reason: undefined })));
	for (const fields of [{ status: "resolved" }, { reason: "fixed" }, { assignee: "Ada" }, { severity: "high" }, { title: "U" }, { until: "2026" }, { proposal: proposal() }]) {
		assert.ok(differs(task(), task(fields)));
	}
	assert.ok(!differs(task({ proposal: proposal() }), task({ proposal: proposal() })));
});

test("equal decisions do not conflict, unless one has a comment", () => {
	const now = task({ status: "resolved", reason: "fixed" });
	assert.ok(isAlready({ status: "resolved", reason: "fixed" }, now));
	assert.ok(isAlready({ status: "resolved", reason: undefined, comment: undefined }, now));
	assert.ok(isAlready({ assignee: "" }, now));
	assert.ok(!isAlready({ status: "resolved", reason: "duplicate" }, now));
	assert.ok(!isAlready({ status: "resolved", comment: "x" }, now));
	assert.ok(isAlready({ severity: "reported" }, now));
	assert.ok(!isAlready({ severity: "low" }, now)); // later reports would change it
	assert.ok(isAlready({ severity: "low" }, task({ reportedSeverity: "high" })));
});

test("undo restores the former state of each finding", () => {
	const before = [task(), task({ id: "2", status: "dismissed", reason: "duplicate" }), task({ id: "3" })];
	const after = before.map((each) => ({ ...each, status: "resolved", etag: `${each.id}b` }));
	assert.deepEqual(wayBack(before, after, { status: "resolved" }).map(({ tasks, fields }) => [tasks.map(({ etag }) => etag), fields]), [
		[["1b", "3b"], { status: "open" }],
		[["2b"], { status: "dismissed", reason: "duplicate" }],
	]);
	assert.deepEqual(wayBack([task({ assignee: "Ada" })], after, { assignee: "" })[0].fields, { assignee: "Ada" });
	const dismissed = task({ status: "dismissed", reason: "duplicate", duplicateOf: "2" });
	for (const [from, fields, way] of [
		[task(), { severity: "high" }, { severity: "reported" }],
		[task({ reportedSeverity: "info" }), { severity: "reported" }, { severity: "low" }],
		[dismissed, { status: "dismissed", until: "2026" }, { status: "dismissed", reason: "duplicate", until: "", duplicateOf: "2" }],
		[{ ...dismissed, until: "2026" }, { status: "open" }, { status: "dismissed", reason: "duplicate", until: "2026", duplicateOf: "2" }],
	]) {
		assert.deepEqual(wayBack([from], [from], fields)[0].fields, way);
	}
});

test("neither a comment nor a reason alone can be undone", () => {
	assert.ok(canUndo({ tasks: [task()], fields: { status: "resolved", reason: "fixed" } }));
	assert.ok(canUndo({ tasks: [task()], fields: { assignee: "" } }));
	assert.ok(!canUndo({ tasks: [task()], fields: { comment: "x" } }));
	assert.ok(!canUndo({ tasks: [task({ status: "resolved" })], fields: { status: "resolved", reason: "fixed" } }));
	assert.ok(canUndo({ tasks: [task()], fields: { severity: "high" } }));
	const duplicate = { status: "dismissed", reason: "duplicate", duplicateOf: "2" };
	assert.ok(canUndo({ tasks: [task({ ...duplicate, duplicateOf: "3" })], fields: duplicate }));
	assert.ok(!canUndo({ tasks: [task({ ...duplicate, duplicateOf: null })], fields: duplicate }));
});

test("proposals with the same values are one group, and their comments are sent apart", () => {
	const proposed = [{ reason: "fixed", status: "resolved" }, {}, { comment: "D" }, { by: "other" }].map((fields, index) => task({ id: String(index), proposal: proposal(fields) }));
	const idsOf = (groups) => groups.map(({ tasks }) => tasks.map(({ id }) => id));
	const groups = groupProposals(proposed);
	assert.deepEqual([groups.map(({ title }) => title), idsOf(groups)], [["Dismiss as won't fix", "Resolve as fixed"], [["1", "2", "3"], ["0"]]]);
	const changes = acceptances(proposed);
	assert.deepEqual(idsOf(changes), [["0"], ["1", "3"], ["2"]]);
	assert.deepEqual(changes[2].fields, { status: "dismissed", reason: "wont_fix", duplicateOf: null, until: null, comment: "D" });
	assert.deepEqual(changes.map(({ verb, what }) => verb + what), ["ResolveResolved ", "DismissDismissed ", "DismissDismissed "]);
});

test("the latest verification of each criterion counts", () => {
	const entry = (outcome, criterion) => ({ event: "verified", outcome, criterion });
	const history = [{ event: "created" }, entry("fixed", "A"), entry("still_present", "A"), entry("inconclusive", null)];
	const found = latestVerifications(history, { outcome: "fixed", criterion: "B" }); // newer than the first page of a long history
	assert.deepEqual([...found].map(([criterion, { outcome }]) => [criterion, outcome]), [["A", "still_present"], [null, "inconclusive"], ["B", "fixed"]]);
	assert.equal(latestVerifications([], null).size, 0);
});

test("a stored change has no large fields", () => {
	const stored = keepable({ tasks: [task({ description: "bulky" })], fields: { status: "open" }, way: [] });
	assert.ok(!JSON.stringify(stored).includes("bulky"));
	assert.deepEqual(Object.keys(stored), ["tasks", "fields"]);
});
