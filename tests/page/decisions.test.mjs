import assert from "node:assert/strict";
import { test } from "node:test";

import { canUndo, decided, differs, isAlready, wayBack } from "../../findings_adapters/page/decisions.js";

const task = (fields = {}) => ({ id: "1", etag: "a", status: "open", reason: null, assignee: null, severity: "low", title: "T", ...fields });

test("a decision changes only its fields, and a new status clears the reason", () => {
	const before = task({ status: "dismissed", reason: "wont_fix", assignee: "Ada" });
	assert.deepEqual(decided(before, { comment: "x" }, "b"), { ...before, etag: "b" });
	assert.deepEqual(decided(before, { status: "open" }, "b"), { ...before, status: "open", reason: null, etag: "b" });
	assert.deepEqual(decided(before, { status: "dismissed", assignee: "" }, "b"), { ...before, assignee: null, etag: "b" });
	assert.equal(decided(before, { status: "resolved", reason: "fixed" }, "b").reason, "fixed");
});

test("a repeated report is not a different state", () => {
	assert.ok(!differs(task(), task({ etag: "b", timesSeen: 7, reason: undefined })));
	for (const fields of [{ status: "resolved" }, { reason: "fixed" }, { assignee: "Ada" }, { severity: "high" }, { title: "U" }]) {
		assert.ok(differs(task(), task(fields)));
	}
});

test("equal decisions do not conflict, unless one has a comment", () => {
	const now = task({ status: "resolved", reason: "fixed" });
	assert.ok(isAlready({ status: "resolved", reason: "fixed" }, now));
	assert.ok(isAlready({ status: "resolved", reason: undefined, comment: undefined }, now));
	assert.ok(isAlready({ assignee: "" }, now));
	assert.ok(!isAlready({ status: "resolved", reason: "duplicate" }, now));
	assert.ok(!isAlready({ status: "resolved", comment: "x" }, now));
});

test("undo restores the former state of each finding", () => {
	const before = [task(), task({ id: "2", status: "dismissed", reason: "duplicate" }), task({ id: "3" })];
	const after = before.map((each) => ({ ...each, status: "resolved", etag: `${each.id}b` }));
	assert.deepEqual(wayBack(before, after, { status: "resolved" }).map(({ tasks, fields }) => [tasks.map(({ etag }) => etag), fields]), [
		[["1b", "3b"], { status: "open" }],
		[["2b"], { status: "dismissed", reason: "duplicate" }],
	]);
	assert.deepEqual(wayBack([task({ assignee: "Ada" })], after, { assignee: "" })[0].fields, { assignee: "Ada" });
});

test("neither a comment nor a reason alone can be undone", () => {
	assert.ok(canUndo({ tasks: [task()], fields: { status: "resolved", reason: "fixed" } }));
	assert.ok(canUndo({ tasks: [task()], fields: { assignee: "" } }));
	assert.ok(!canUndo({ tasks: [task()], fields: { comment: "x" } }));
	assert.ok(!canUndo({ tasks: [task({ status: "resolved" })], fields: { status: "resolved", reason: "fixed" } }));
});
